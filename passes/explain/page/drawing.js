/* Drawing of boxes and edges on a canvas. */
const FONT = "system-ui, sans-serif";

class Pen {
  constructor(context, colours) {
    this.c = context;
    this.colours = colours;
    this.refresh();
  }
  /* Colours of the style, which depend on whether the page is light or dark. */
  refresh() {
    for (const name of ["fg", "bg", "soft", "card", "line", "dim", "edge", "cross", "accent"]) this[name] = css("--" + name);
  }
  begin(view, width, height, ratio) {
    const c = this.c;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = this.soft;
    c.fillRect(0, 0, width, height);
    c.setTransform(ratio * view.zoom, 0, 0, ratio * view.zoom, ratio * view.x, ratio * view.y);
    this.zoom = view.zoom;
  }
  /* All edges of one look at once: a stroke for each would take most of a frame. */
  edges(edges, colour, width) {
    const c = this.c, plain = this.zoom < 0.12, least = plain ? 2 / this.zoom : 0;
    c.strokeStyle = colour;
    c.lineWidth = width / Math.min(1, Math.max(this.zoom, 0.02));
    c.beginPath();
    for (const { points, top, bottom, left, right } of edges) {
      if (bottom - top < least && right - left < least) continue; // under its boxes
      let [x, y] = points[0];
      c.moveTo(x, y);
      for (let i = 1; i < points.length; i++) {
        const [u, v] = points[i];
        if (plain && i < points.length - 1 && Math.abs(u - x) < least && Math.abs(v - y) < least) continue; // as good as one point
        if (plain || u === x) c.lineTo(u, v);
        else { const bend = (v - y) / 2; c.bezierCurveTo(x, y + bend, u, v - bend, u, v); }
        [x, y] = [u, v];
      }
      if (this.zoom > 0.4) { c.moveTo(x - 4, y - 6); c.lineTo(x, y); c.lineTo(x + 4, y - 6); }
    }
    c.stroke();
  }
  box(left, top, w, h, radius) {
    this.c.beginPath();
    if (this.zoom < 0.2) this.c.rect(left, top, w, h); else this.c.roundRect(left, top, w, h, radius);
  }
  outline(box, colour, width) {
    this.box(box.left, box.top, box.w, box.h, 7);
    this.c.strokeStyle = colour;
    this.c.lineWidth = width / Math.min(1, this.zoom);
    this.c.stroke();
  }
  text(text, x, y, size, colour, weight, align) {
    const c = this.c;
    c.font = (weight || 400) + " " + size + "px " + FONT;
    c.fillStyle = colour;
    c.textAlign = align || "left";
    c.fillText(text, x, y);
  }
  /* Boxes without text, from afar: all of one colour at once. They would be less than a pixel. */
  dots(boxes, colour, opacity) {
    const c = this.c;
    c.globalAlpha = opacity;
    c.fillStyle = colour;
    c.beginPath();
    let [x, y] = [NaN, NaN];
    for (const box of boxes) {
      const w = Math.max(box.w, 3 / this.zoom), h = Math.max(box.h, 2 / this.zoom);
      if (Math.abs(box.x - x) * this.zoom < 0.5 && Math.abs(box.y - y) * this.zoom < 0.5) continue; // on the one before
      [x, y] = [box.x, box.y];
      c.rect(x - w / 2, y - h / 2, w, h);
    }
    c.fill();
    c.globalAlpha = 1;
  }
  get isFar() { return this.zoom < 0.35; }
  width(text, size, weight) {
    this.c.font = (weight || 400) + " " + size + "px " + FONT;
    return this.c.measureText(text).width;
  }
  /* The text, shortened to a width: at its end, or at its beginning if the end says more. */
  fit(text, width, size, weight, keepsEnd) {
    const c = this.c;
    if (this.width(text, size, weight) <= width) return text;
    let [least, most] = [0, text.length];
    const cut = (n) => (keepsEnd ? "…" + text.slice(text.length - n) : text.slice(0, n) + "…");
    while (least < most) {
      const middle = (least + most + 1) >> 1;
      if (c.measureText(cut(middle)).width <= width) least = middle; else most = middle - 1;
    }
    return cut(least);
  }
  leaf(box, look) {
    const c = this.c, { colour, title, name, note } = look;
    this.box(box.left, box.top, box.w, box.h, 7);
    c.fillStyle = mix(this.card, colour, 0.16);
    c.fill();
    c.strokeStyle = mix(this.card, colour, 0.55);
    c.lineWidth = 1;
    c.stroke();
    c.fillStyle = colour;
    c.beginPath();
    c.roundRect(box.left, box.top, 6, box.h, [7, 0, 0, 7]);
    c.fill();
    this.text(title, box.left + 14, box.top + 18, 12.5, this.fg, 600);
    if (note) this.text(note, box.left + box.w - 9, box.top + 18, 11, this.fg, 400, "right");
    if (name) this.text(name, box.left + 14, box.top + 34, 11, this.dim);
  }
  end(box, kind, name, note) {
    const c = this.c, wide = box.w - box.h;
    this.box(box.left, box.top, box.w, box.h, box.h / 2);
    c.fillStyle = this.card;
    c.fill();
    c.strokeStyle = this.dim;
    c.lineWidth = 1.2 / Math.min(1, Math.max(this.zoom, 0.2));
    c.stroke();
    if (this.isFar) return;
    this.text(kind + this.fit(name, wide - this.width(kind, 11.5, 600), 11.5, 600, true), box.x, box.top + 14, 11.5, this.fg, 600, "center");
    this.text(this.fit(note, wide, 10), box.x, box.top + 26, 10, this.dim, 400, "center");
  }
  closed(box, look) {
    this.leaf(box, look);
    let x = box.left + 14;
    const room = box.w - 24;
    for (const [colour, share] of look.parts) {
      this.c.fillStyle = colour;
      this.c.fillRect(x, box.top + box.h - 10, Math.max(1, room * share), 4);
      x += room * share;
    }
  }
  opened(box, look) {
    this.box(box.left, box.top, box.w, box.h, 9);
    this.c.fillStyle = mix(this.soft, this.fg, 0.035);
    this.c.fill();
    this.outline(box, this.line, 1);
  }
  /* Over the edges, so that it can be read. */
  heading(box, look) {
    if (this.zoom < 0.2) return;
    this.text("▾ " + look.title, box.left + 12, box.top + 19, 12.5, this.fg, 600);
    if (look.note && box.w > 260) this.text(look.note, box.left + box.w - 12, box.top + 19, 11, this.dim, 400, "right");
  }
}

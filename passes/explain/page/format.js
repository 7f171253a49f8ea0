"use strict";
/* Numbers and elements. */
const $ = (id) => document.getElementById(id);
const ROWS = 400;

function time(us) {
  if (us === null || us === undefined) return "unknown";
  if (us < 0.9995) return (us * 1e3).toFixed(0) + " ns";
  return us < 999.95 ? us.toFixed(1) + " µs" : us < 999950 ? (us / 1e3).toFixed(2) + " ms" : (us / 1e6).toFixed(2) + " s";
}
function scaled(n, units, step) {
  let i = 0;
  while (n >= 999.95 && i < units.length - 1) { n /= step; i += 1; }
  return (i ? n.toFixed(1) : Math.round(n)) + " " + units[i];
}
const bytes = (n) => (n === null || n === undefined ? "unknown" : scaled(n, ["B", "kB", "MB", "GB", "TB"], 1000));
const flops = (n) => (n === null || n === undefined ? "unknown" : scaled(n, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"], 1000));
const rate = (n, unit) => scaled(n, [unit, "k" + unit, "M" + unit, "G" + unit, "T" + unit], 1000);
const percent = (part, whole) => (whole > 0 && part !== null ? (100 * part / whole).toFixed(1) + " %" : "");
const plural = (n, word) => n.toLocaleString("en") + " " + word + (n === 1 ? "" : "s");
const short = (text, most) => (text.length <= most ? text : "…" + text.slice(text.length - most + 1));

function make(tag, text, parent, properties) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  for (const [name, value] of Object.entries(properties || {})) {
    if (name in element) element[name] = value; else element.setAttribute(name, value);
  }
  if (parent) parent.append(element);
  return element;
}
function clear(element) { element.textContent = ""; return element; }

/* Call `action` once before the next frame, however often it is asked for. */
function perFrame(action) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; action(); });
  };
}

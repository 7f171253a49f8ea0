"""The thin runtime: loads a bundle and runs it as a chain of compiled models."""

from heterocc.runtime.binding import Binding
from heterocc.runtime.feeds import TensorInfo
from heterocc.runtime.profile import Profile, ProfileRecord
from heterocc.runtime.session import Session, load
from heterocc.runtime.trace import KernelTrace

__all__ = ["Binding", "KernelTrace", "Profile", "ProfileRecord", "Session", "TensorInfo", "load"]

"""The errors that loading and running a bundle may raise; docs/errors.md explains each code."""

from heterocc.artifacts.errors import (
    BundleChangedError,
    BundleError,
    BundleHashError,
    BundleManifestError,
    BundleVersionError,
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    DriverMissingError,
    FeedError,
    FileMissingError,
    HeteroccError,
    IncompatibleBundleError,
    InputError,
    InputValueError,
    InternalError,
    KeyFileError,
    MissingPackageError,
    NativeCodeError,
    NativePluginError,
    SignatureError,
    UnknownDeviceError,
    UntrustedBundleError,
    UsageError,
)

__all__ = [
    "BundleChangedError",
    "BundleError",
    "BundleHashError",
    "BundleManifestError",
    "BundleVersionError",
    "DeviceError",
    "DeviceLostError",
    "DeviceMemoryError",
    "DriverMissingError",
    "FeedError",
    "FileMissingError",
    "HeteroccError",
    "IncompatibleBundleError",
    "InputError",
    "InputValueError",
    "InternalError",
    "KeyFileError",
    "MissingPackageError",
    "NativeCodeError",
    "NativePluginError",
    "SignatureError",
    "UnknownDeviceError",
    "UntrustedBundleError",
    "UsageError",
]


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted(__all__)

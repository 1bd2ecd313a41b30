//! Values of the API's enums, which a newer broker may have more of.

use std::fmt;

use comity_proto::Unspecified;
use serde::{Serialize, Serializer};

/// A value, or `unknown` if this version of `comity` does not know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known<T> {
    /// A value that this version knows.
    Value(T),
    /// A value of a newer version.
    Unknown,
}

impl<T: PartialEq> Known<T> {
    /// Whether it is this value.
    pub fn is(&self, value: T) -> bool {
        *self == Self::Value(value)
    }
}

impl<T> From<Result<T, Unspecified>> for Known<T> {
    fn from(value: Result<T, Unspecified>) -> Self {
        value.map_or(Self::Unknown, Self::Value)
    }
}

impl<T: fmt::Display> fmt::Display for Known<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(f),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

impl<T: fmt::Display> Serialize for Known<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

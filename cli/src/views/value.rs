//! Absent and unknown values of the API. Protobuf writes an absent value as its zero, JSON and YAML write `null`; a newer
//! broker may have more values of an enum.

use std::fmt;

use comity_proto::Unspecified;
use serde::{Serialize, Serializer};

/// `None` for 0.
pub(super) fn non_zero(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}

/// `None` for the empty text.
pub(super) fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Whether serde omits a number that is shown only if it is not 0.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's skip_serializing_if passes a reference")]
pub(super) fn is_zero(number: &u32) -> bool {
    *number == 0
}

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

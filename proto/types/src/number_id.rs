//! Ids that the broker numbers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::invalid_id::InvalidId;

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// Parses the text form; `field` names it in the error.
            pub fn parse(text: &str, field: &str) -> Result<Self, InvalidId> {
                text.strip_prefix($prefix)
                    .filter(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
                    .filter(|digits| !(digits.len() > 1 && digits.starts_with('0')))
                    .and_then(|digits| digits.parse().ok())
                    .map(Self)
                    .ok_or_else(|| {
                        let reason = concat!("is not a ", $what, " id");
                        InvalidId::new(field, text, reason, concat!("write it as ", $prefix, "N"))
                    })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::parse(text, $what)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text, $what).map_err(serde::de::Error::custom)
            }
        }
    };
}

number_id!(
    /// A request, "req-N".
    RequestId, "req-", "request");
number_id!(
    /// A lease, "lease-N".
    LeaseId, "lease-", "lease");
number_id!(
    /// A peering, "peer-N".
    PeeringId, "peer-", "peering");

/// The namespace of a lease on the donor, and the name of its Secret on the origin.
#[must_use]
pub fn namespace_name(lease: LeaseId) -> String {
    format!("comity-{lease}")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_text_form() {
        assert_eq!(RequestId::parse("req-42", "request").map(|id| id.to_string()), Ok("req-42".to_owned()));
        for bad in ["42", "req-", "req-042", "req--1", "req-+1", "lease-1", "req-99999999999999999999"] {
            assert!(RequestId::parse(bad, "request").is_err(), "{bad}");
        }
    }

    #[test]
    fn errors_name_the_field_and_the_remedy() {
        let error = LeaseId::parse("lease-x", "envelope.lease").unwrap_err();
        assert_eq!(error.to_string(), "envelope.lease \"lease-x\" is not a lease id; write it as lease-N");
    }
}

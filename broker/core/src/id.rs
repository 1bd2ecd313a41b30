//! Ids. Parse, don't validate: a value of these types is well formed. Names are shared, not copied, by those who hold them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::refusal::Refusal;

/// Whether `text` is a DNS label as Kubernetes uses it (RFC 1123): 1 to 63 of `[a-z0-9-]`, letters or digits at both ends.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => {
            bytes.len() <= 63 && edge(first) && edge(last) && bytes.iter().all(|&b| edge(b) || b == b'-')
        }
        _ => false,
    }
}

/// The first eight bytes of a text as a number: numbers are in the order of texts, as far as they tell them apart.
fn head_of(text: &str) -> u64 {
    let bytes = text.bytes().chain(std::iter::repeat(0)).take(8);
    bytes.fold(0, |head, byte| head << 8 | u64::from(byte))
}

macro_rules! label_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name {
            /// Its first eight bytes: most ids are told apart by them, without a look at the text.
            head: u64,
            text: Arc<str>,
        }

        impl $name {
            /// Parses a DNS label; `field` names it in the refusal.
            pub fn parse(text: &str, field: &str) -> Result<Self, Refusal> {
                if is_dns_label(text) {
                    return Ok(Self { head: head_of(text), text: text.into() });
                }
                Err(Refusal::invalid(
                    field,
                    text,
                    concat!("is not a ", $what, " id"),
                    "use 1 to 63 lower-case letters, digits and '-', with a letter or digit at both ends",
                ))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.text
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.text)
            }
        }

        impl FromStr for $name {
            type Err = Refusal;
            fn from_str(text: &str) -> Result<Self, Refusal> {
                Self::parse(text, $what)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.text)
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

label_id!(
    /// A member cluster.
    ClusterId, "cluster");
label_id!(
    /// An institution.
    InstitutionId, "institution");
label_id!(
    /// A tenant.
    TenantId, "tenant");
label_id!(
    /// A GPU class.
    ClassName, "class");
label_id!(
    /// A priority class.
    PriorityName, "priority class");
label_id!(
    /// A node of an offer: the donor's agent hashes its host name, so any label will do.
    NodeId, "node");

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// Parses the text form; `field` names it in the refusal.
            pub fn parse(text: &str, field: &str) -> Result<Self, Refusal> {
                text.strip_prefix($prefix)
                    .filter(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
                    .filter(|digits| !(digits.len() > 1 && digits.starts_with('0')))
                    .and_then(|digits| digits.parse().ok())
                    .map(Self)
                    .ok_or_else(|| {
                        Refusal::invalid(
                            field,
                            text,
                            concat!("is not a ", $what, " id"),
                            concat!("write it as ", $prefix, "N"),
                        )
                    })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = Refusal;
            fn from_str(text: &str) -> Result<Self, Refusal> {
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
    /// An offloading request, "req-N".
    RequestId, "req-", "request");
number_id!(
    /// A lease, "lease-N".
    LeaseId, "lease-", "lease");
number_id!(
    /// A peering, "peer-N".
    PeeringId, "peer-", "peering");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_strict() {
        for good in ["a", "polytech-campus", "0x", &"a".repeat(63)] {
            assert!(ClusterId::parse(good, "cluster").is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "a.b", "ä", &"a".repeat(64)] {
            assert!(ClusterId::parse(bad, "cluster").is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_have_one_text_form() {
        assert_eq!(RequestId::parse("req-42", "request").map(|id| id.to_string()), Ok("req-42".to_owned()));
        for bad in ["42", "req-", "req-042", "req--1", "req-+1", "lease-1", "req-99999999999999999999"] {
            assert!(RequestId::parse(bad, "request").is_err(), "{bad}");
        }
    }
}

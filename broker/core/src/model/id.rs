//! Ids. Parse, don't validate: every value of these types is well formed. Names of up to 23 bytes are stored inline, so
//! that lookups need no extra memory access; longer names are shared by reference count.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smol_str::SmolStr;

use crate::model::refusal::Refusal;

/// Whether `text` is a DNS label as Kubernetes uses it (RFC 1123): 1 to 63 of `[a-z0-9-]`, letters or digits at both
/// ends.
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

/// Orders labels like their texts, eight bytes at a time. Labels contain printable ASCII only.
fn order(one: &str, other: &str) -> Ordering {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let (heads, other_heads) = (one.as_chunks::<8>().0, other.as_chunks::<8>().0);
    for (head, other_head) in heads.iter().zip(other_heads) {
        if head != other_head {
            return u64::from_be_bytes(*head).cmp(&u64::from_be_bytes(*other_head));
        }
    }
    let same = 8 * heads.len().min(other_heads.len());
    next_eight(one, same).cmp(&next_eight(other, same))
}

/// The eight bytes from `at` on as one integer, padded with zeros, which are less than any byte of a label.
fn next_eight(label: &[u8], at: usize) -> u64 {
    if let Some(eight) = label[at..].first_chunk() {
        return u64::from_be_bytes(*eight);
    }
    let left = label.len() - at;
    match label.last_chunk() {
        Some(_) if left == 0 => 0,
        Some(eight) => u64::from_be_bytes(*eight) << (8 * (8 - left)),
        None => (0..8).fold(0, |word, place| word << 8 | u64::from(label.get(place).copied().unwrap_or(0))),
    }
}

macro_rules! label_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Eq)]
        pub struct $name(SmolStr);

        impl $name {
            /// Parses a DNS label; `field` names it in the refusal.
            pub fn parse(text: &str, field: &str) -> Result<Self, Refusal> {
                if is_dns_label(text) {
                    return Ok(Self(SmolStr::new(text)));
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
                &self.0
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.0.len() == other.0.len() && order(&self.0, &other.0).is_eq()
            }
        }

        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                order(&self.0, &other.0)
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
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
                serializer.serialize_str(&self.0)
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
    /// A node of an offer. The donor's agent hashes the host name, so any label is valid.
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
    fn labels_order_like_their_texts() {
        let texts =
            ["a", "a-b", "abcdefgh", "abcdefgh0", "abcdefg-z", "abcdefghi-b", "abcdefghi-a", "b", &"a".repeat(40)];
        let mut ids: Vec<NodeId> = texts.iter().map(|text| NodeId::parse(text, "node").unwrap()).collect();
        ids.sort();
        let mut sorted = texts;
        sorted.sort_unstable();
        assert_eq!(ids.iter().map(NodeId::as_str).collect::<Vec<_>>(), sorted);
    }

    proptest::proptest! {
        #[test]
        fn labels_compare_like_their_texts(
            head in "[a-b-]{0,20}", one in "[a-b-]{0,20}", other in "[a-b-]{0,20}", long in 0..40_usize,
        ) {
            let label = |tail: &str| format!("a{}{head}{tail}0", "x".repeat(long % 4 * 5));
            let (one, other) = (label(&one), label(&other));
            let [id, other_id] = [&one, &other].map(|text| NodeId::parse(text, "node").unwrap());
            proptest::prop_assert_eq!(id.cmp(&other_id), one.cmp(&other));
            proptest::prop_assert_eq!(id == other_id, one == other);
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

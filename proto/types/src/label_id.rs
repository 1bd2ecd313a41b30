//! Ids that are DNS labels. Those of up to 23 bytes are stored inline, so that look-ups need no extra memory access;
//! longer ones are shared by reference count.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smol_str::SmolStr;

use crate::dns_label::is_dns_label;
use crate::invalid_id::InvalidId;

/// How to write a label.
const REMEDY: &str = "use 1 to 63 lower-case letters, digits and '-', with a letter or digit at both ends";

/// Orders labels like their texts, eight bytes at a time. Labels contain printable ASCII only.
#[inline]
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
#[inline]
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
    ($(#[$doc:meta])* $name:ident, $field:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Eq)]
        pub struct $name(SmolStr);

        impl $name {
            /// Parses a DNS label; `field` names it in the error.
            pub fn parse(text: &str, field: &str) -> Result<Self, InvalidId> {
                if is_dns_label(text) {
                    return Ok(Self(SmolStr::new(text)));
                }
                Err(InvalidId::new(field, text, concat!("is not ", $what, " id"), REMEDY))
            }

            /// The text.
            #[inline]
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq for $name {
            #[inline]
            fn eq(&self, other: &Self) -> bool {
                self.0.len() == other.0.len() && order(&self.0, &other.0).is_eq()
            }
        }

        impl Hash for $name {
            #[inline]
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }

        impl Ord for $name {
            #[inline]
            fn cmp(&self, other: &Self) -> Ordering {
                order(&self.0, &other.0)
            }
        }

        impl PartialOrd for $name {
            #[inline]
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
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::parse(text, $field)
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
                Self::parse(&text, $field).map_err(serde::de::Error::custom)
            }
        }
    };
}

label_id!(
    /// A member cluster.
    ClusterId, "cluster", "a cluster");
label_id!(
    /// An institution.
    InstitutionId, "institution", "an institution");
label_id!(
    /// A tenant.
    TenantId, "tenant", "a tenant");
label_id!(
    /// A GPU class.
    ClassName, "class", "a class");
label_id!(
    /// A priority class.
    PriorityName, "priority class", "a priority class");
label_id!(
    /// A request template.
    TemplateName, "request template", "a request template");
label_id!(
    /// A node of an offer. The donor's agent hashes the host name, so any label is valid.
    NodeId, "node", "a node");

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

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

    #[test]
    fn a_refused_id_is_named_with_its_article_and_shown_as_it_is_escaped_once() {
        let error = InstitutionId::parse("Poly\u{1b}", "institution").unwrap_err();
        assert!(error.to_string().starts_with(r#"institution "Poly\u{1b}" is not an institution id; use "#), "{error}");
        let error = TenantId::parse("", "spec.tenant").unwrap_err();
        assert!(error.to_string().starts_with(r#"spec.tenant "" is not a tenant id; use "#), "{error}");
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
}

//! Names that are drawn once: of a group, and of one broker's disk.

use std::fmt;

use comity_runtime::entropy::{Entropy as _, SystemEntropy};
use serde::{Deserialize, Serialize};

/// Bytes of a name that people see; the whole is 32 hex digits.
const SHOWN: usize = 8;

/// Names one life of a broker's disk. A broker whose log was lost begins another life under the same number: the group
/// tells the two apart and does not count promises of the first for the second.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(String);

/// Names a group. A group that was recovered from a copy has another name than the one before, and brokers of the two
/// do not speak to each other.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupId(String);

macro_rules! drawn {
    ($name:ident) => {
        impl $name {
            /// One that nobody has.
            #[must_use]
            pub fn draw() -> Self {
                Self(SystemEntropy.unique_hex())
            }

            /// As it came over the wire; empty where there is none.
            #[must_use]
            pub fn from_wire(text: &str) -> Option<Self> {
                (!text.is_empty()).then(|| Self(text.to_owned()))
            }

            /// The whole name.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.0.get(..SHOWN).unwrap_or(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

drawn!(Incarnation);
drawn!(GroupId);

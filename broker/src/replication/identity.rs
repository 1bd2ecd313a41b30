//! Random identifiers: of a group, and of one incarnation of a broker's disk.

use std::fmt;

use comity_runtime::entropy::{Entropy as _, SystemEntropy};
use serde::{Deserialize, Serialize};

/// Digits shown, of 32.
const SHOWN: usize = 8;

/// Identifies one incarnation of a broker's disk. A broker that lost its log gets a new incarnation under the same
/// number, so that the group does not count promises of the earlier one for it.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(String);

/// Identifies one start of a broker's process.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StartId(String);

/// Identifies a group. A group recovered from a copy gets a new id, and brokers of the two refuse each other.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupId(String);

macro_rules! drawn {
    ($name:ident) => {
        impl $name {
            /// A new random identifier.
            #[must_use]
            pub fn draw() -> Self {
                Self(SystemEntropy.unique_hex())
            }

            /// Parses the wire form; `None` if empty.
            #[must_use]
            pub fn from_wire(text: &str) -> Option<Self> {
                (!text.is_empty()).then(|| Self(text.to_owned()))
            }

            /// All digits.
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
drawn!(StartId);
drawn!(GroupId);

//! The kinds of floods.

use std::fmt;
use std::str::FromStr;

/// What one caller does as fast as it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloodKind {
    /// Asks for quotes.
    Quotes,
    /// Submits requests, beyond the bound of its tenant.
    Submits,
    /// Submits requests and cancels each: all are accepted.
    Cancels,
    /// Connects without a certificate, and keeps the connections.
    Connections,
    /// Opens watches, and keeps them.
    Watches,
    /// Reports as an agent: two offers in turn, which differ in every node.
    Reports,
    /// Lists requests and offers, and reads the policy.
    Lists,
    /// Keeps 500 watches open, and asks for 200 quotes at a time.
    WatchesAndQuotes,
}

impl FloodKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Quotes,
        Self::Submits,
        Self::Cancels,
        Self::Connections,
        Self::Watches,
        Self::Reports,
        Self::Lists,
        Self::WatchesAndQuotes,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Quotes => "quotes",
            Self::Submits => "submits",
            Self::Cancels => "cancels",
            Self::Connections => "connections",
            Self::Watches => "watches",
            Self::Reports => "reports",
            Self::Lists => "lists",
            Self::WatchesAndQuotes => "watches-and-quotes",
        }
    }
}

impl fmt::Display for FloodKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for FloodKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == text.trim());
        kind.ok_or_else(|| format!("write some of {}, separated by commas", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for kind in FloodKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("storms".parse::<FloodKind>().is_err_and(|error| error.contains("quotes, submits")));
    }
}

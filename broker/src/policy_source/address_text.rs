//! What all addresses have in common.

pub(super) const HTTPS_PORT: u16 = 443;
pub(super) const HTTP_PORT: u16 = 80;

/// Text that is no address or no branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invalid {
    /// After the value, as in "is no address of a repository".
    pub(crate) why: &'static str,
    pub(crate) remedy: &'static str,
}

/// Blanks, and what a terminal does not show.
pub(super) fn has_unseen(text: &str) -> bool {
    text.chars().any(|c| c.is_control() || c.is_whitespace()) || comity_types::printable(text) != text
}

/// The parser leaves out a port that it cannot read.
pub(super) fn has_valid_port(authority: &http::uri::Authority) -> bool {
    let rest = authority.as_str().rsplit_once('@').map_or(authority.as_str(), |(_, server)| server);
    let port = rest.get(authority.host().len()..).unwrap_or_default();
    port.is_empty() || port.strip_prefix(':').and_then(|port| port.parse::<u16>().ok()).is_some_and(|port| port > 0)
}

/// A host as resolvers take it: an IPv6 address has brackets in addresses alone.
pub(super) fn host_name(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

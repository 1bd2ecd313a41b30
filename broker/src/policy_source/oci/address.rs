//! Addresses of artifacts, and digests.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::policy_source::address_text::{HTTP_PORT, HTTPS_PORT, Invalid, has_valid_port, host_name};

const HTTPS: &str = "oci://";
const PLAIN: &str = "oci+http://";
/// Bytes of a repository's name and of a tag, as registries bound them.
const MAX_REPOSITORY_NAME_BYTES: usize = 255;
const MAX_TAG_BYTES: usize = 128;
const ADDRESS_REMEDY: &str = "write oci://HOST/NAME:TAG or oci://HOST/NAME@sha256:DIGEST, without a password";

/// The SHA-256 of a manifest or layer, as `sha256:` and 64 digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct ArtifactDigest([u8; 32]);

impl ArtifactDigest {
    /// The digest of a content.
    pub(crate) fn of(content: &[u8]) -> Self {
        Self(Sha256::digest(content).into())
    }

    /// Its 64 digits.
    pub(super) fn digits(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Display for ArtifactDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.digits())
    }
}

impl From<ArtifactDigest> for String {
    fn from(digest: ArtifactDigest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for ArtifactDigest {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl FromStr for ArtifactDigest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = "is no digest: want sha256: and 64 digits";
        let digits = text.strip_prefix("sha256:").ok_or(invalid)?;
        let mut digest = [0; 32];
        hex::decode_to_slice(digits, &mut digest).map_err(|_| invalid)?;
        // One spelling.
        if digits.bytes().any(|digit| digit.is_ascii_uppercase()) { Err(invalid) } else { Ok(Self(digest)) }
    }
}

/// Which artifact of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ArtifactVersion {
    /// Whatever has the tag now.
    Tag(String),
    /// This one for ever.
    Digest(ArtifactDigest),
}

impl fmt::Display for ArtifactVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => f.write_str(tag),
            Self::Digest(digest) => digest.fmt(f),
        }
    }
}

/// Where an artifact is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArtifactAddress {
    /// Without TLS, which only a registry on this machine may do.
    pub(super) is_plain: bool,
    pub(in crate::policy_source) host: String,
    pub(super) port: u16,
    /// The repository's name in its registry.
    pub(super) name: String,
    pub(super) version: ArtifactVersion,
}

impl ArtifactAddress {
    /// `None` if the text is no address of an artifact.
    pub(crate) fn parse(text: &str) -> Option<Result<Self, Invalid>> {
        let (is_plain, rest) = match text.strip_prefix(HTTPS) {
            Some(rest) => (false, rest),
            None => (true, text.strip_prefix(PLAIN)?),
        };
        Some(Self::parse_rest(is_plain, rest).map_err(|why| Invalid { why, remedy: ADDRESS_REMEDY }))
    }

    fn parse_rest(is_plain: bool, rest: &str) -> Result<Self, &'static str> {
        let (authority, path) = rest.split_once('/').ok_or("names no artifact")?;
        // A state that everybody reads is no place for a password.
        if authority.contains('@') {
            return Err("has a user or a password in it");
        }
        let authority: http::uri::Authority = authority.parse().map_err(|_| "has no valid host")?;
        if authority.host().is_empty() || !has_valid_port(&authority) {
            return Err("has no valid host or port");
        }
        let host = authority.host().to_ascii_lowercase();
        if is_plain && !is_this_machine(&host) {
            return Err("would send the policy without TLS, which only registries on this machine may do");
        }
        let (name, version) = match path.split_once('@') {
            Some((name, digest)) => (name, ArtifactVersion::Digest(digest.parse()?)),
            None => match path.rsplit_once(':') {
                Some((name, tag)) if is_tag(tag) => (name, ArtifactVersion::Tag(tag.to_owned())),
                Some(_) => return Err("has no valid tag"),
                None => return Err("has neither a tag nor a digest"),
            },
        };
        if name.contains(':') {
            return Err("has a tag and a digest: give one of them");
        }
        if !is_name(name) {
            return Err(
                "has no valid name of a repository: registries take lower-case letters, digits, `.`, `_` and `-`",
            );
        }
        let port = authority.port_u16().unwrap_or(if is_plain { HTTP_PORT } else { HTTPS_PORT });
        Ok(Self { is_plain, host, port, name: name.to_owned(), version })
    }

    /// The address with another version.
    pub(super) fn with_digest(&self, digest: ArtifactDigest) -> Self {
        Self { version: ArtifactVersion::Digest(digest), ..self.clone() }
    }
}

impl fmt::Display for ArtifactAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_plain, host, port, name, version } = self;
        f.write_str(if *is_plain { PLAIN } else { HTTPS })?;
        f.write_str(host)?;
        if *port != if *is_plain { HTTP_PORT } else { HTTPS_PORT } {
            write!(f, ":{port}")?;
        }
        let mark = if matches!(version, ArtifactVersion::Tag(_)) { ':' } else { '@' };
        write!(f, "/{name}{mark}{version}")
    }
}

/// Whether a host is named as this machine. For `localhost` the connection checks what the resolver says.
pub(super) fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host_name(host).parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn is_name(name: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.first().is_some_and(|byte| is_alphanumeric(*byte))
            && bytes.last().is_some_and(|byte| is_alphanumeric(*byte))
            && bytes.iter().all(|byte| is_alphanumeric(*byte) || b"._-".contains(byte))
            && !part.contains("..")
    };
    name.len() <= MAX_REPOSITORY_NAME_BYTES && name.split('/').all(is_part)
}

fn is_tag(tag: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= MAX_TAG_BYTES
        && tag.bytes().next().is_some_and(is_letter)
        && tag.bytes().all(|byte| is_letter(byte) || b".-".contains(&byte))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;
    use crate::policy_source::Repository;

    const DIGEST: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    #[test]
    fn addresses_have_one_spelling() {
        assert_eq!(ArtifactDigest::of(b"test").to_string(), DIGEST);
        for (text, shown) in [
            ("oci://Registry.Example/org/policy:main", "oci://registry.example/org/policy:main"),
            ("oci://registry.example:443/policy:v1.0", "oci://registry.example/policy:v1.0"),
            ("oci://registry.example:5000/policy:main", "oci://registry.example:5000/policy:main"),
            ("oci+http://127.0.0.1:5000/policy:main", "oci+http://127.0.0.1:5000/policy:main"),
            ("oci+http://[::1]:80/policy:main", "oci+http://[::1]/policy:main"),
            ("oci+http://localhost/policy:main", "oci+http://localhost/policy:main"),
        ] {
            let parsed = Repository::parse(text).unwrap();
            assert_eq!(parsed.to_string(), shown);
            assert_eq!(Repository::parse(shown).unwrap(), parsed);
        }
        let pinned = format!("oci://registry.example/policy@{DIGEST}");
        assert_eq!(Repository::parse(&pinned).unwrap().to_string(), pinned);
    }

    #[test]
    fn others_are_refused() {
        for (bad, why) in [
            ("oci://registry.example".to_owned(), "names no artifact"),
            ("oci://registry.example/policy".to_owned(), "neither a tag nor a digest"),
            ("oci://registry.example/policy:".to_owned(), "valid tag"),
            ("oci://registry.example/policy:a b".to_owned(), "blanks"),
            ("oci://registry.example/policy:-x".to_owned(), "valid tag"),
            ("oci://registry.example/policy@sha256:12".to_owned(), "is no digest"),
            (format!("oci://registry.example/policy@{}", DIGEST.to_uppercase()), "is no digest"),
            (format!("oci://registry.example/policy:main@{DIGEST}"), "a tag and a digest"),
            ("oci://registry.example/../policy:main".to_owned(), "valid name"),
            ("oci://registry.example/Policy:main".to_owned(), "valid name"),
            ("oci://registry.example//policy:main".to_owned(), "valid name"),
            ("oci://registry.example/policy?x:main".to_owned(), "valid name"),
            ("oci://bot:hunter2@registry.example/policy:main".to_owned(), "password"),
            ("oci://registry.example:0/policy:main".to_owned(), "port"),
            ("oci:///policy:main".to_owned(), "valid host"),
            ("oci+http://registry.example/policy:main".to_owned(), "without TLS"),
            ("oci+http://127.0.0.1.evil.example/policy:main".to_owned(), "without TLS"),
        ] {
            let refused = Repository::parse(&bad).unwrap_err();
            assert!(refused.why.contains(why), "{bad}: {}", refused.why);
        }
    }

    #[test]
    fn made_up_addresses_of_artifacts() {
        let valid = vec![b"oci://registry.example/policy:main".to_vec(), b"oci+http://[::1]:5000/a/b:c".to_vec()];
        fuzz!("artifact_addresses", valid, |bytes: &[u8]| {
            let parsed = std::str::from_utf8(bytes).ok().and_then(ArtifactAddress::parse);
            let Some(Ok(address)) = parsed else { return false };
            let shown = ArtifactAddress::parse(&address.to_string());
            assert!(shown.is_some_and(|shown| shown.as_ref() == Ok(&address)));
            true
        });
    }
}

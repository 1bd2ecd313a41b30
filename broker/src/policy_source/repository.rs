//! Addresses of repositories, and names of branches.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use http::Uri;

use crate::policy_source::address_text::{HTTPS_PORT, Invalid, has_unseen, has_valid_port};
use crate::policy_source::oci::ArtifactAddress;

const BRANCH_REMEDY: &str = "name a branch such as `main`, without `refs/heads/`";
const REPOSITORY_REMEDY: &str = "write https://HOST/PATH, ssh://USER@HOST/PATH or oci://HOST/NAME:TAG without a password, or the absolute path of a \
     repository on the brokers' machines";
const SSH_PORT: u16 = 22;

/// Where a repository is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Repository {
    /// Behind a server that speaks Git over HTTPS.
    Https {
        /// Its host.
        host: String,
        /// Its port.
        port: u16,
        /// The path, without a slash at the end.
        path: String,
    },
    /// Behind a server of SSH.
    Ssh {
        /// User at the server, usually `git`.
        user: String,
        /// Its host.
        host: String,
        /// Its port.
        port: u16,
        /// The path. Without a slash at its beginning it counts from the user's home directory.
        path: String,
    },
    /// An artifact of a registry.
    Oci(ArtifactAddress),
    /// In a directory: a bare repository, or one with a work tree.
    Path(PathBuf),
}

/// The name of a branch, without `refs/heads/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Branch(String);

impl Repository {
    pub(crate) fn parse(text: &str) -> Result<Self, Invalid> {
        let invalid = |why| Err(Invalid { why, remedy: REPOSITORY_REMEDY });
        if has_unseen(text) {
            return invalid("has blanks, control characters or invisible ones");
        }
        // A state that everybody reads is no place for one.
        if comity_types::find_secret(text).is_some() {
            return invalid("has a password or a token in it");
        }
        if text.starts_with('/') {
            let path = Path::new(text);
            if path.components().any(|part| matches!(part, Component::ParentDir | Component::CurDir)) {
                return invalid("has `.` or `..` in it");
            }
            return Ok(Self::Path(path.to_owned()));
        }
        if let Some(artifact) = ArtifactAddress::parse(text) {
            return artifact.map(Self::Oci);
        }
        if let Some(rest) = text.strip_prefix("ssh://") {
            let Some((authority, path)) = rest.split_once('/') else { return invalid("names no repository") };
            return Self::parse_ssh(authority, &format!("/{path}"));
        }
        // As in `git@git.example:group/policy.git`.
        if let Some((authority, path)) = text.split_once(':').filter(|(authority, _)| authority.contains('@'))
            && !path.starts_with("//")
        {
            return Self::parse_ssh(authority, path);
        }
        let Ok(uri) = text.parse::<Uri>() else { return invalid("is no address of a repository") };
        if uri.scheme_str() != Some("https") {
            return invalid("is no address that brokers pull from");
        }
        let (Some(authority), None) = (uri.authority(), uri.query()) else {
            return invalid("is no address of a repository");
        };
        // A state that everybody reads is no place for a password.
        if authority.as_str().contains('@') {
            return invalid("has a user or a password in it");
        }
        if !has_valid_port(authority) || text.contains('#') {
            return invalid("has no valid port, or a `#`");
        }
        let path = uri.path().trim_end_matches('/').to_owned();
        if path.is_empty() || authority.host().is_empty() {
            return invalid("names no repository");
        }
        Ok(Self::Https {
            host: authority.host().to_ascii_lowercase(),
            port: authority.port_u16().unwrap_or(HTTPS_PORT),
            path,
        })
    }
}

impl Repository {
    fn parse_ssh(authority: &str, path: &str) -> Result<Self, Invalid> {
        let invalid = |why| Err(Invalid { why, remedy: REPOSITORY_REMEDY });
        let Some((user, server)) = authority.split_once('@') else {
            return invalid("has no user, as in ssh://git@HOST");
        };
        if user.contains(':') {
            return invalid("has a password in it");
        }
        let is_name = |text: &str| {
            let is_letter = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            !text.is_empty() && !text.starts_with('-') && text.chars().all(is_letter)
        };
        let Some(server) = server.parse::<http::uri::Authority>().ok().filter(|it| !it.as_str().contains('@')) else {
            return invalid("is no address of a repository");
        };
        if !has_valid_port(&server) {
            return invalid("has no valid port");
        }
        let path = path.trim_end_matches('/');
        // The server's shell reads it.
        let is_plain = path.chars().all(|c| c.is_alphanumeric() || "/._-~+@=,".contains(c));
        if !is_name(user) || path.is_empty() || path.starts_with('-') || !is_plain {
            return invalid("is no address of a repository");
        }
        Ok(Self::Ssh {
            user: user.to_owned(),
            host: server.host().to_ascii_lowercase(),
            port: server.port_u16().unwrap_or(SSH_PORT),
            path: path.to_owned(),
        })
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Https { host, port: HTTPS_PORT, path } => write!(f, "https://{host}{path}"),
            Self::Https { host, port, path } => write!(f, "https://{host}:{port}{path}"),
            Self::Ssh { user, host, port: SSH_PORT, path } if path.starts_with('/') => {
                write!(f, "ssh://{user}@{host}{path}")
            }
            Self::Ssh { user, host, port, path } if path.starts_with('/') => {
                write!(f, "ssh://{user}@{host}:{port}{path}")
            }
            // This form has no port.
            Self::Ssh { user, host, path, .. } => write!(f, "{user}@{host}:{path}"),
            Self::Oci(artifact) => artifact.fmt(f),
            Self::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Branch {
    /// A name that Git accepts, and that leads to no other file.
    pub(crate) fn parse(text: &str) -> Result<Self, Invalid> {
        let is_part =
            |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with('.') && !part.ends_with(".lock");
        let is_letter = |c: char| !"~^:?*[\\\u{7f}".contains(c);
        let is_branch = !has_unseen(text)
            && text.split('/').all(is_part)
            && text.chars().all(is_letter)
            && !text.starts_with('-')
            && !text.contains("..")
            && !text.contains("@{")
            && !text.starts_with("refs/");
        if is_branch { Ok(Self(text.to_owned())) } else { Err(Invalid { why: "is no branch", remedy: BRANCH_REMEDY }) }
    }

    /// Its full name.
    pub(crate) fn full(&self) -> String {
        format!("refs/heads/{}", self.0)
    }
}

impl fmt::Display for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    #[test]
    fn addresses_have_no_credentials_and_one_spelling() {
        for (text, shown) in [
            ("https://Git.Example/org/policy.git/", "https://git.example/org/policy.git"),
            ("https://git.example:443/policy", "https://git.example/policy"),
            ("https://git.example:8443/policy", "https://git.example:8443/policy"),
            ("https://[::1]:8443/policy", "https://[::1]:8443/policy"),
            ("/srv/policy.git", "/srv/policy.git"),
            ("ssh://git@Git.Example/org/policy.git/", "ssh://git@git.example/org/policy.git"),
            ("ssh://git@git.example:22/policy", "ssh://git@git.example/policy"),
            ("ssh://git@git.example:2222/policy", "ssh://git@git.example:2222/policy"),
            ("ssh://git@[::1]:2222/policy", "ssh://git@[::1]:2222/policy"),
            ("git@git.example:org/policy.git", "git@git.example:org/policy.git"),
            ("git@git.example:/srv/policy.git", "ssh://git@git.example/srv/policy.git"),
        ] {
            let parsed = Repository::parse(text).unwrap();
            assert_eq!(parsed.to_string(), shown);
            assert_eq!(Repository::parse(shown).unwrap(), parsed);
        }
        for bad in [
            "",
            "http://git.example/policy",
            "git.example:policy.git",
            "ssh://git.example/policy",
            "ssh://git:secret@git.example/policy",
            "ssh://git@git.example",
            "ssh://git@git.example/",
            "ssh://-oProxyCommand=x@git.example/policy",
            "ssh://git@git.example/policy'; id; '",
            "git@git.example:-policy",
            "git@git.example:",
            "file:///srv/policy",
            "https://user:secret@git.example/policy",
            "https://git.example",
            "https://git.example/policy?ref=main",
            "srv/policy",
            "/srv/../etc",
            "https://git.example/a b",
            "https://git.example:99999/policy",
            "https://git.example:0/policy",
            "https://git.example/policy#main",
            "ssh://git@git.example:70000/policy",
            "ssh://git@git.example:x/policy",
            "ssh://ghp_abcdefghijklmnopqrst@git.example/policy",
            "/srv/pol\u{202e}icy",
        ] {
            assert!(Repository::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn branches_lead_nowhere_else() {
        for good in ["main", "release/2026", "a-b_c"] {
            assert_eq!(Branch::parse(good).unwrap().full(), format!("refs/heads/{good}"));
        }
        for bad in
            ["", "../config", "a/../b", ".git", "-f", "a b", "a\n", "refs/heads/main", "x.lock", "/x", "x/", "a:b"]
        {
            assert!(Branch::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn made_up_addresses() {
        let valid = ["https://git.example/p", "/srv/p", "ssh://git@git.example/p", "git@git.example:p"]
            .map(|text| text.as_bytes().to_vec())
            .to_vec();
        fuzz!("repository_addresses", valid, |bytes: &[u8]| {
            std::str::from_utf8(bytes).is_ok_and(|text| {
                let _ = Branch::parse(text);
                Repository::parse(text).is_ok()
            })
        });
    }
}

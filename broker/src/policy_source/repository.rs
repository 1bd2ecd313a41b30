//! Addresses of repositories, and names of branches.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use http::Uri;

const HTTPS_PORT: u16 = 443;
const BRANCH_REMEDY: &str = "name a branch such as `main`, without `refs/heads/`";
const REPOSITORY_REMEDY: &str =
    "write https://HOST/PATH without credentials, or the absolute path of a repository on the brokers' machines";

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
    /// In a directory: a bare repository, or one with a work tree.
    Path(PathBuf),
}

/// The name of a branch, without `refs/heads/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Branch(String);

/// Text that is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invalid {
    /// After the value, as in "is no address of a repository".
    pub(crate) why: &'static str,
    pub(crate) remedy: &'static str,
}

impl Repository {
    pub(crate) fn parse(text: &str) -> Result<Self, Invalid> {
        let invalid = |why| Err(Invalid { why, remedy: REPOSITORY_REMEDY });
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return invalid("has blanks or control characters");
        }
        if text.starts_with('/') {
            let path = Path::new(text);
            if path.components().any(|part| matches!(part, Component::ParentDir | Component::CurDir)) {
                return invalid("has `.` or `..` in it");
            }
            return Ok(Self::Path(path.to_owned()));
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

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Https { host, port: HTTPS_PORT, path } => write!(f, "https://{host}{path}"),
            Self::Https { host, port, path } => write!(f, "https://{host}:{port}{path}"),
            Self::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Branch {
    /// A name that Git accepts, and that leads to no other file.
    pub(crate) fn parse(text: &str) -> Result<Self, Invalid> {
        let is_part =
            |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with('.') && !part.ends_with(".lock");
        let is_letter = |c: char| !c.is_control() && !c.is_whitespace() && !"~^:?*[\\\u{7f}".contains(c);
        let is_branch = text.split('/').all(is_part)
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
        ] {
            let parsed = Repository::parse(text).unwrap();
            assert_eq!(parsed.to_string(), shown);
            assert_eq!(Repository::parse(shown).unwrap(), parsed);
        }
        for bad in [
            "",
            "http://git.example/policy",
            "git@git.example:policy.git",
            "ssh://git.example/policy",
            "file:///srv/policy",
            "https://user:secret@git.example/policy",
            "https://git.example",
            "https://git.example/policy?ref=main",
            "srv/policy",
            "/srv/../etc",
            "https://git.example/a b",
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
        let valid = ["https://git.example/p", "/srv/p"].map(|text| text.as_bytes().to_vec()).to_vec();
        fuzz!("repository_addresses", valid, |bytes: &[u8]| {
            std::str::from_utf8(bytes).is_ok_and(|text| {
                let _ = Branch::parse(text);
                Repository::parse(text).is_ok()
            })
        });
    }
}

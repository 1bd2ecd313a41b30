//! Syntax of names, trust domains and user ids.

use comity_types::{DATASET_NAME_REMEDY, is_dataset_name};

use crate::limits::MAX_NAME_CHARS;

/// Checks a name: an RFC 1123 label, as in Kubernetes. The error is the remedy.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() {
        return Err("give it a name".to_owned());
    }
    if name.len() > MAX_NAME_CHARS {
        return Err(format!("use at most {MAX_NAME_CHARS} characters"));
    }
    if !name.chars().all(allowed) || name.starts_with('-') || name.ends_with('-') {
        return Err("use lower-case letters, digits and `-`, with a letter or digit at both ends".to_owned());
    }
    Ok(())
}

/// Checks the name of a dataset, which requests and offers use too. The error is the remedy.
pub(crate) fn check_dataset_name(name: &str) -> Result<(), String> {
    if is_dataset_name(name) { Ok(()) } else { Err(DATASET_NAME_REMEDY.to_owned()) }
}

/// Checks a trust domain: dot-separated RFC 1123 labels. The error is the remedy.
pub(crate) fn check_trust_domain(domain: &str) -> Result<(), String> {
    if domain.len() > 253 || domain.split('.').any(|label| check_name(label).is_err()) {
        return Err("write it like a host name in lower case: `comity.example`".to_owned());
    }
    Ok(())
}

/// Checks a user id `spiffe://<trust domain>/user/<name>` and returns its trust domain. The error is the remedy.
pub(crate) fn parse_user_id(id: &str) -> Result<&str, String> {
    let form = || {
        "write `spiffe://<trust domain>/user/<name>`, with at most 63 lower-case letters, digits, `.`, `_` and `-` in \
         the name, and a letter or digit at both its ends"
            .to_owned()
    };
    let (domain, path) = id.strip_prefix("spiffe://").and_then(|rest| rest.split_once('/')).ok_or_else(form)?;
    check_trust_domain(domain).map_err(|_| form())?;
    let name = path.strip_prefix("user/").ok_or_else(form)?;
    let at_ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let allowed = |c: char| at_ends(c) || matches!(c, '.' | '_' | '-');
    let is_name = name.len() <= MAX_NAME_CHARS
        && name.chars().all(allowed)
        && name.starts_with(at_ends)
        && name.ends_with(at_ends);
    if is_name { Ok(domain) } else { Err(form()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_dns_label_rules() {
        for good in ["a", "poly-ml", "7b", &"a".repeat(63)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "ä", "a.b", &"a".repeat(64)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn user_ids_name_their_trust_domain() {
        assert_eq!(parse_user_id("spiffe://comity.example/user/alice"), Ok("comity.example"));
        for bad in [
            "alice",
            "spiffe://comity.example/cluster/a",
            "spiffe://comity.example/user/",
            "spiffe://comity.example/user/..",
            "spiffe://comity.example/user/Alice",
            "spiffe://comity.example/user/alice.",
            "spiffe://comity.example/user/a/b",
            "spiffe://Comity.example/user/a",
            "spiffe:///user/a",
        ] {
            assert!(parse_user_id(bad).is_err(), "{bad}");
        }
    }
}

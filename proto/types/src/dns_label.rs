//! DNS labels.

/// Whether `text` is a DNS label as Kubernetes uses it (RFC 1123): 1 to 63 of `[a-z0-9-]`, letters or digits at both
/// ends.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_label_of_any_length(text)
}

/// Whether `text` is a DNS subdomain as Kubernetes names most objects: labels joined by dots, at most 253 characters.
/// Kubernetes does not limit the single label.
#[must_use]
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label_of_any_length)
}

fn is_label_of_any_length(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => edge(first) && edge(last) && bytes.iter().all(|&b| edge(b) || b == b'-'),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_strict() {
        for good in ["a", "polytech-campus", "0x", &"a".repeat(63)] {
            assert!(is_dns_label(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "a.b", "ä", &"a".repeat(64)] {
            assert!(!is_dns_label(bad), "{bad}");
        }
    }

    #[test]
    fn subdomains_are_labels_with_dots() {
        let longest = format!("{}.b", "a.".repeat(125) + "a");
        for good in ["a", "bucket.team-a", &longest, &"a".repeat(253)] {
            assert!(is_dns_subdomain(good), "{good}");
        }
        for bad in ["", "a.", ".a", "a..b", "a.-b", "A.b", &"a.".repeat(127), &"a".repeat(254)] {
            assert!(!is_dns_subdomain(bad), "{bad}");
        }
        assert!(!is_dns_subdomain(&format!("{longest}.c")));
    }
}

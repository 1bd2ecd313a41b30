//! DNS labels: the form of names of namespaces, tenants, GPU classes and Liqo's clusters.

/// Longest label, in bytes.
pub const MAX_BYTES: usize = 63;

/// Whether the text is a DNS label: lower-case letters, digits and inner hyphens, 1 to 63 of them.
pub fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_BYTES).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_told_from_other_texts() {
        for good in ["origin", "a", "0-9", "5f0e6d9c-1f0b-4e9a-9a39-8a3f6f1f2d11", &"a".repeat(63)] {
            assert!(is_dns_label(good), "{good}");
        }
        for bad in ["", "-a", "a-", "system:masters", "A", "a.b", "a/b", "ä", &"a".repeat(64)] {
            assert!(!is_dns_label(bad), "{bad}");
        }
    }
}

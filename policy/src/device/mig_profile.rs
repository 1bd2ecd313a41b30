//! The syntax of MIG profile names.

/// Bytes of the longest name.
const MAX_BYTES: usize = 32;

/// Whether the text is a well-formed MIG profile name; no board may support it.
///
/// As in `nvidia-smi mig -lgip` and device plugins: compute slices and memory (`1g.10gb`), optionally with compute
/// instances in front (`1c.3g.40gb`) and engines at the end (`1g.10gb+me`, `1g.24gb-me`).
#[must_use]
pub fn is_mig_profile(text: &str) -> bool {
    let is_slice_count = |text: &str| matches!(text.as_bytes(), [b'1'..=b'9']);
    let are_engines = |text: &str| {
        text.split('.').count() <= 2
            && text.split('.').all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase()))
    };
    let is_memory = |text: &str| {
        let has_digits = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        has_digits && !text.starts_with('0')
    };
    let (plain, extra) = match text.find(['+', '-']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let Some((slices, gigabytes)) = plain.strip_suffix("gb").and_then(|plain| plain.split_once("g.")) else {
        return false;
    };
    let (instances, slices) = slices.split_once("c.").map_or((None, slices), |(first, rest)| (Some(first), rest));
    text.len() <= MAX_BYTES
        && instances.is_none_or(is_slice_count)
        && is_slice_count(slices)
        && is_memory(gigabytes)
        && extra.is_none_or(are_engines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_profile_names_only() {
        for good in ["1g.5gb", "1g.10gb", "1g.10gb+me", "1g.24gb-me", "1g.5gb+me.all", "1c.3g.40gb", "7g.180gb"] {
            assert!(is_mig_profile(good), "{good}");
        }
        let long = format!("1g.10gb+{}", "a".repeat(40));
        for bad in [
            "",
            "bad profile!",
            "1g",
            "10gb",
            "1g.10",
            "1G.10GB",
            "0g.10gb",
            "1g.0gb",
            "12g.10gb",
            "1g.10gb+",
            "1g.10gb me",
            "1g.10gb+m e",
            "c.1g.10gb",
            "é",
            "1g.10gb+é",
            "mig-1g.10gb",
            &long,
        ] {
            assert!(!is_mig_profile(bad), "{bad}");
        }
    }
}

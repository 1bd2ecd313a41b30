//! Suggests the known word nearest to a misspelt one.

use strsim::osa_distance;

/// The known word nearest to `word`, if few enough edits separate them for a typing error.
#[must_use]
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let word: String = word.chars().take(80).flat_map(char::to_lowercase).collect();
    let allowed = (word.chars().count() / 3).clamp(1, 3);
    known
        .into_iter()
        .map(|candidate| (osa_distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

/// A remedy: the nearest known word, or else the first twelve known words.
pub(crate) fn did_you_mean(word: &str, known: &[&str]) -> String {
    if let Some(near) = nearest(word, known.iter().copied()) {
        return format!("did you mean `{near}`?");
    }
    if known.is_empty() {
        return String::new();
    }
    let mut listed: Vec<String> = known.iter().take(12).map(|word| format!("`{word}`")).collect();
    if known.len() > 12 {
        listed.push("…".to_owned());
    }
    format!("known here: {}", listed.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_near_words_only() {
        let known = ["members", "maxGpus", "institution"];
        assert_eq!(nearest("mambers", known), Some("members"));
        assert_eq!(nearest("maxGPUs", known), Some("maxGpus"));
        assert_eq!(nearest("insitution", known), Some("institution"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(did_you_mean("colour", &["a", "b"]), "known here: `a`, `b`");
    }
}

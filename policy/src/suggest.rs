//! Suggests the known word nearest to a misspelt one.

/// The known word nearest to `word`, if few enough edits separate them for a typing error.
pub(crate) fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let word_lower: Vec<char> = word.chars().take(80).flat_map(char::to_lowercase).collect();
    let allowed = (word_lower.len() / 3).clamp(1, 3);
    known
        .into_iter()
        .map(|candidate| {
            let lower: Vec<char> = candidate.chars().flat_map(char::to_lowercase).collect();
            (distance(&word_lower, &lower), candidate)
        })
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

/// Edit distance with swaps of neighbours (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = vec![0; b.len() + 1];
    let mut previous: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut current = vec![i + 1; b.len() + 1];
        for (j, cb) in b.iter().enumerate() {
            let change = previous[j] + usize::from(ca != cb);
            current[j + 1] = change.min(previous[j + 1] + 1).min(current[j] + 1);
            if i > 0 && j > 0 && *ca == b[j - 1] && a[i - 1] == *cb {
                current[j + 1] = current[j + 1].min(before[j - 1] + 1);
            }
        }
        before = previous;
        previous = current;
    }
    previous[b.len()]
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

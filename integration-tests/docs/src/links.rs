//! Links between pages.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result};
use regex::Regex;

/// The links of a page that lead to no file or to no heading, each with its line number.
///
/// # Errors
/// If the page cannot be read.
pub fn broken(page: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let link = Regex::new(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")?;
    let folder = page.parent().unwrap_or(page);
    let mut broken = Vec::new();
    let mut in_code = false;
    for (number, line) in text.lines().enumerate() {
        in_code ^= line.starts_with("```");
        for found in link.captures_iter(line).filter(|_| !in_code) {
            let (file, anchor) = (found.get(1).map_or("", |file| file.as_str()), found.get(2));
            if file.contains("://") || file.starts_with("mailto:") {
                continue;
            }
            let target = if file.is_empty() { page.to_owned() } else { folder.join(file) };
            let has_anchor = match anchor {
                Some(anchor) if target.is_file() => {
                    anchors(&std::fs::read_to_string(&target)?).contains(anchor.as_str())
                }
                _ => true,
            };
            if !target.exists() || !has_anchor {
                broken.push(format!(
                    "line {}: {} leads nowhere",
                    number + 1,
                    found.get(0).map_or("", |all| all.as_str().trim_start_matches(']'))
                ));
            }
        }
    }
    Ok(broken)
}

/// The anchors of a page's headings, by GitHub's rule: lower case, spaces as hyphens, no punctuation.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut in_code = false;
    let headings = text.lines().filter(|line| {
        in_code ^= line.starts_with("```");
        !in_code && line.starts_with('#')
    });
    let anchor = |line: &str| {
        let kept = line.trim_start_matches('#').trim().chars();
        let kept = kept.filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
        kept.map(|letter| if letter == ' ' { '-' } else { letter.to_ascii_lowercase() }).collect()
    };
    headings.map(anchor).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn links_to_missing_files_and_headings_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page.md");
        let text = "# A page: `code`, 2\n[a](#a-page-code-2) [b](#b)\n[c](other.md) [d](page.md#a-page-code-2)\n\
                    ```text\n[e](nothing.md)\n```\n[f](https://example.org/x#y)\n";
        std::fs::write(&page, text).unwrap();
        let broken = broken(&page).unwrap();
        assert_eq!(broken, ["line 2: (#b) leads nowhere", "line 3: (other.md) leads nowhere"]);
    }
}

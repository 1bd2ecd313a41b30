//! Reads YAML; errors name the field and the line.

use serde::de::DeserializeOwned;
use serde_saphyr::UserMessageFormatter;

/// Characters of a line that are shown.
const SHOWN_CHARS: usize = 80;

/// Reads a text.
///
/// # Errors
/// One sentence with the field, the problem, line and column, and the text there.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut field = String::new();
    let read = serde_saphyr::with_deserializer_from_str(text, |yaml| {
        let mut track = serde_path_to_error::Track::new();
        T::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track)).inspect_err(|_| {
            let path = track.path();
            if path.iter().next().is_some() {
                field = path.to_string();
            }
        })
    });
    read.map_err(|error| sentence(&field, text, error.without_snippet()))
}

fn sentence(field: &str, text: &str, error: &serde_saphyr::Error) -> String {
    // The formatter for users: the one for developers advises on how to call the parser.
    let what = error.render_with_formatter(&UserMessageFormatter);
    let what = what.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    let what = if what.is_empty() { "it is not YAML".to_owned() } else { what };
    let field = if field.is_empty() { String::new() } else { format!("{field}: ") };
    let place = error.location().and_then(|place| usize::try_from(place.line()).ok());
    let line = place.and_then(|line| text.lines().nth(line.checked_sub(1)?)).map(str::trim);
    match line.filter(|line| !line.is_empty()) {
        Some(line) => format!("{field}{what}: {:?}", line.chars().take(SHOWN_CHARS).collect::<String>()),
        None => format!("{field}{what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_value_of_the_wrong_type_is_named_with_its_field_and_line() {
        for (text, parts) in [
            ("sharing:\n  maxLentGpus: many\n", ["sharing.maxLentGpus", "line 2", "many"]),
            ("fabric:\n  keepaliveSeconds: [1]\n", ["fabric.keepaliveSeconds", "line 2", "[1]"]),
            ("burst: {enabled: perhaps}\n", ["burst.enabled", "line 1", "perhaps"]),
            ("adminListen: localhost\n", ["adminListen", "line 1", "localhost"]),
            ("stateDir: /a\nliqo:\n  podCidrs:\n    - 10.0.0.0\n", ["liqo.podCidrs[0]", "line 4", "10.0.0.0"]),
            ("burst:\n  enabeld: true\n", ["burst", "line 2", "enabeld"]),
        ] {
            let error = read::<Config>(text).expect_err(text);
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn advice_for_programmers_is_left_out() {
        for text in ["stateDir: /a\n---\nstateDir: /b\n", "a: [", "\t", "burst: {enabled: yes}\n", "stateDir: null\n"] {
            let Err(error) = read::<Config>(text) else { continue };
            let advice = ["from_str", "Options", "Deserialize", "serde", "with_"];
            assert!(!advice.iter().any(|word| error.contains(word)) && !error.contains('\n'), "{error}");
        }
    }
}

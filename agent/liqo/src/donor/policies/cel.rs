//! Pieces of rules in CEL.

use super::Validation;

/// A rule whose refusal Liqo tries again.
pub(super) fn refuse(holds: &str, message: &str) -> Validation {
    Validation { holds: holds.to_owned(), message: message.to_owned(), reason: "Invalid" }
}

/// A CEL list of strings.
pub(super) fn list(items: &[&str]) -> String {
    format!("[{}]", items.iter().map(|item| quoted(item)).collect::<Vec<_>>().join(", "))
}

/// A CEL string; characters that could end it early are written as code points.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("'");
    for character in text.chars() {
        match character {
            ' '..='~' if character != '\'' && character != '\\' => quoted.push(character),
            other => quoted.push_str(&format!("\\U{:08x}", u32::from(other))),
        }
    }
    quoted.push('\'');
    quoted
}

/// Whether a claim's spec selects no volume that exists.
pub(super) fn of_new_volume(spec: &str) -> String {
    format!("!has({spec}.selector) && !(has({spec}.storageClassName) && {spec}.storageClassName == '')")
}

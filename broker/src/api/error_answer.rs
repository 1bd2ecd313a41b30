//! The status with which calls fail, without the secrets that callers wrote in a wrong field, and without characters that
//! steer a terminal: answers are logged on the way and pasted into tickets.

use comity_proto::{ErrorDetails, error_status, v1};
use comity_types::{printable, redact_secrets};
use tonic::{Code, Status};

/// Characters of one text that are searched for secrets; the rest is left out. Headers take no longer ones.
const MAX_CHARS: usize = 16 * 1024;

/// A status with `detail` and `others`, in which `[redacted]` stands for what looks like a secret, and escapes for
/// characters that are not printable.
#[must_use]
pub fn error_answer(code: Code, detail: &v1::ErrorDetail, mut others: ErrorDetails) -> Status {
    if let Some(bad) = others.bad_request() {
        let mut violations = bad.field_violations.clone();
        for violation in &mut violations {
            violation.field = presentable(&violation.field);
            violation.description = presentable(&violation.description);
        }
        others.set_bad_request(violations);
    }
    error_status(code, &presentable_detail(detail), others)
}

fn presentable_detail(detail: &v1::ErrorDetail) -> v1::ErrorDetail {
    v1::ErrorDetail {
        code: detail.code.clone(),
        reason: presentable(&detail.reason),
        field: presentable(&detail.field),
        value: presentable(&detail.value),
        remedy: presentable(&detail.remedy),
    }
}

fn presentable(text: &str) -> String {
    let cut = match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", redact_secrets(&text[..end])),
        None => redact_secrets(text),
    };
    printable(&cut).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut() {
        let detail = v1::ErrorDetail { reason: "é".repeat(MAX_CHARS + 1), ..v1::ErrorDetail::default() };
        assert_eq!(presentable_detail(&detail).reason, "é".repeat(MAX_CHARS) + "…");
    }

    #[test]
    fn no_answer_steers_a_terminal() {
        let text = "no delivery \u{1b}]0;owned\u{7}\n  next line".to_owned();
        let detail = v1::ErrorDetail { reason: text.clone(), value: text, ..v1::ErrorDetail::default() };
        let shown = presentable_detail(&detail);
        assert_eq!(shown.reason, "no delivery \\u{1b}]0;owned\\u{7}\n  next line");
        assert_eq!(shown.value, shown.reason);
    }
}

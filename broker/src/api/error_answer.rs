//! The status with which calls fail, without the secrets that callers wrote in a wrong field: answers are logged on the
//! way and pasted into tickets.

use comity_proto::{ErrorDetails, error_status, v1};
use comity_types::redact_secrets;
use tonic::{Code, Status};

/// Characters of one text that are searched for secrets; the rest is left out. Headers take no longer ones.
const MAX_CHARS: usize = 16 * 1024;

/// A status with `detail` and `others`, in which `[redacted]` stands for what looks like a secret.
#[must_use]
pub fn error_answer(code: Code, detail: &v1::ErrorDetail, mut others: ErrorDetails) -> Status {
    if let Some(bad) = others.bad_request() {
        let mut violations = bad.field_violations.clone();
        for violation in &mut violations {
            violation.field = without_secrets(&violation.field);
            violation.description = without_secrets(&violation.description);
        }
        others.set_bad_request(violations);
    }
    error_status(code, &detail_without_secrets(detail), others)
}

fn detail_without_secrets(detail: &v1::ErrorDetail) -> v1::ErrorDetail {
    v1::ErrorDetail {
        code: detail.code.clone(),
        reason: without_secrets(&detail.reason),
        field: without_secrets(&detail.field),
        value: without_secrets(&detail.value),
        remedy: without_secrets(&detail.remedy),
    }
}

fn without_secrets(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", redact_secrets(&text[..end])),
        None => redact_secrets(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut() {
        let detail = v1::ErrorDetail { reason: "é".repeat(MAX_CHARS + 1), ..v1::ErrorDetail::default() };
        assert_eq!(detail_without_secrets(&detail).reason, "é".repeat(MAX_CHARS) + "…");
    }
}

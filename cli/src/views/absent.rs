//! Protobuf writes an absent value as its zero; JSON and YAML write it as `null`.

/// `None` for 0.
pub(super) fn non_zero(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}

/// `None` for the empty text.
pub(super) fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Whether serde omits a number that is shown only if it is not 0.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's skip_serializing_if passes a reference")]
pub(super) fn is_zero(number: &u32) -> bool {
    *number == 0
}

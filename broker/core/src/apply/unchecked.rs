//! The serde form of fields that switch a check off. Entries that were written before such a field existed were not
//! checked: a missing field is a yes, so that they keep their effect.

pub(crate) const fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
pub(crate) const fn is_yes(value: &bool) -> bool {
    *value
}

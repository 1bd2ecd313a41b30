//! Lease ids and the names made from them; checked because they become names of namespaces, nodes and files.

use crate::delivery_error::DeliveryError;

/// Label of every object made for a lease; its value is the lease's id.
pub const LEASE_LABEL: &str = "comity.dev/lease";

/// The namespace of a lease on the donor, and the name of its Secret on the origin.
#[must_use]
pub fn namespace_name(lease_id: &str) -> String {
    format!("comity-{lease_id}")
}

/// Checks that `id` is the id of a lease.
///
/// # Errors
/// [`DeliveryError::Permanent`] with code `bad-lease-id`.
pub fn check_lease_id(id: &str) -> Result<(), DeliveryError> {
    let number = id.strip_prefix("lease-").unwrap_or_default();
    if (1..=20).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(());
    }
    Err(DeliveryError::permanent("bad-lease-id", format!("{id:?} is not the id of a lease, such as lease-7")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_from_other_texts() {
        assert_eq!(check_lease_id("lease-7").ok(), Some(()));
        for wrong in ["lease-", "lease-x", "7", "lease-7/..", "lease-123456789012345678901"] {
            assert!(check_lease_id(wrong).is_err(), "{wrong}");
        }
    }
}

//! Validates idempotency keys; apply remembers them.

use comity_core::limits::MAX_IDEMPOTENCY_KEY_BYTES;
use comity_core::{Idempotency, Refusal};
use prost::Message;
use sha2::{Digest as _, Sha256};

/// Binds a key to a call. `call` names the RPC; `body` is the message with its key field cleared.
pub fn of_call<M: Message>(caller: &str, key: &str, call: &str, body: &M) -> Result<Idempotency, Refusal> {
    let printable = key.chars().all(|c| c.is_ascii_graphic());
    if key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY_BYTES || !printable {
        return Err(Refusal::invalid(
            "idempotency_key",
            key,
            "is not an idempotency key",
            format!(
                "send 1 to {MAX_IDEMPOTENCY_KEY_BYTES} printable ASCII characters without blanks, new for each call"
            ),
        ));
    }
    Ok(Idempotency { caller: caller.to_owned(), key: key.to_owned(), body_sha256: body_sha256(call, body) })
}

/// SHA-256 over the call's name and its body, in hex.
pub fn body_sha256<M: Message>(call: &str, body: &M) -> String {
    let mut hash = Sha256::new();
    hash.update(call.as_bytes());
    hash.update([0]);
    hash.update(body.encode_to_vec());
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use comity_proto::v1;

    use super::*;

    #[test]
    fn keys_have_bounds_and_bodies_tell_apart() {
        let body = v1::CancelRequestRequest { request: "req-1".to_owned(), idempotency_key: String::new() };
        for bad in ["", "a b", "ä", &"k".repeat(129)] {
            assert_eq!(of_call("me", bad, "Cancel", &body).expect_err(bad).field, "idempotency_key");
        }
        let one = of_call("me", "k", "Cancel", &body).expect("good");
        let other = v1::CancelRequestRequest { request: "req-2".to_owned(), ..body.clone() };
        assert_eq!(one, of_call("me", "k", "Cancel", &body).expect("good"));
        assert_ne!(one.body_sha256, body_sha256("Cancel", &other));
        assert_ne!(one.body_sha256, body_sha256("Release", &body));
    }
}

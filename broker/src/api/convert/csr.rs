//! Parses certificate requests, and the signatures over them.

use comity_core::Refusal;
use comity_runtime::ca::CsrDer;
use comity_runtime::signing::IdentitySignature;

/// A signature in a field of a message.
///
/// # Errors
/// [`Refusal`] of the field.
pub fn parse_signature(field: &str, bytes: &[u8]) -> Result<IdentitySignature, Refusal> {
    IdentitySignature::from_bytes(bytes).map_err(|_| {
        let size = format!("{} bytes", bytes.len());
        Refusal::invalid(field, size, "is not an Ed25519 signature", "send its 64 bytes")
    })
}

/// The certificate request of a message. Whether it is well-formed and signed is seen at the issue.
///
/// # Errors
/// [`Refusal`]: it is too large.
pub fn parse_csr(der: Vec<u8>) -> Result<CsrDer, Refusal> {
    let bytes = der.len();
    CsrDer::new(der).map_err(|_| {
        let remedy = format!("send at most {} bytes", CsrDer::MAX_BYTES);
        Refusal::invalid("csr_der", format!("{bytes} bytes"), "is too large", remedy)
    })
}

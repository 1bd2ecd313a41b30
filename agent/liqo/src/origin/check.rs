//! Validates remote input that becomes part of names, selectors or objects.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_model::delivery_error::DeliveryError;
use comity_types::is_dns_label;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use crate::{IdentityParams, LiqoPeer, MAX_LIQO_ID, PeerCredential, tenant_namespace_of};

/// Longest PEM text, in base64, of a certificate or bundle.
const MAX_PEM: usize = 32 << 10;
/// Longest token: those of ServiceAccounts have about a thousand bytes.
const MAX_TOKEN: usize = 16 << 10;

/// Checks a namespace of this cluster that is to be offloaded.
pub(super) fn target_namespace(name: &str) -> Result<(), DeliveryError> {
    let ours = ["kube-", "liqo", "comity-"].iter().any(|prefix| name.starts_with(prefix));
    if is_dns_label(name) && !ours {
        return Ok(());
    }
    let message = format!(
        "target_namespace {name:?} cannot be offloaded: it must be a namespace's name, and none of the cluster itself, \
         of Liqo or of Comity"
    );
    Err(DeliveryError::permanent("bad-target-namespace", message))
}

/// Checks the other side's ids, before objects are named after them.
pub(super) fn peer(peer: &LiqoPeer, own_id: &str) -> Result<(), DeliveryError> {
    let bad = |message: String| Err(DeliveryError::permanent("bad-liqo-id", message));
    if !is_dns_label(&peer.liqo_id) || peer.liqo_id.len() > MAX_LIQO_ID {
        return bad(format!(
            "liqo_cluster_id {:?} of cluster {} is no DNS label of at most {MAX_LIQO_ID} characters",
            peer.liqo_id, peer.cluster
        ));
    }
    if peer.liqo_id == own_id {
        return bad(format!(
            "cluster {} has the Liqo cluster id {own_id:?} of this cluster; install one of the two again with \
             discovery.config.clusterID set",
            peer.cluster
        ));
    }
    Ok(())
}

/// Checks the donor's parameters against its signed key bundle.
pub(super) fn identity(params: &IdentityParams, signed_api_server: &str, own_id: &str) -> Result<(), DeliveryError> {
    let bad = |message: String| Err(DeliveryError::permanent("bad-liqo-identity", message));
    let Some(named) = host_and_port(&params.api_server) else {
        return bad(format!("api_server {:?} of the donor's Liqo is not https://HOST[:PORT]", params.api_server));
    };
    if host_and_port(signed_api_server) != Some(named) {
        return bad(format!(
            "the donor's Liqo names the API server {:?}, its signed key bundle names {signed_api_server:?}; set \
             apiServer.address of its Liqo to the latter",
            params.api_server
        ));
    }
    let wanted = tenant_namespace_of(own_id);
    if params.tenant_namespace != wanted {
        return bad(format!("tenant_namespace of the donor is {:?}, not {wanted:?}", params.tenant_namespace));
    }
    let certificate = match &params.credential {
        PeerCredential::Certificate(text) => Some(("certificate", text)),
        PeerCredential::Token(token) if is_token(token.expose()) => None,
        PeerCredential::Token(_) => {
            return bad(format!("token of the donor is none of at most {MAX_TOKEN} letters, digits, '.', '-' and '_'"));
        }
    };
    for (field, text) in [Some(("ca", &params.ca)), certificate].into_iter().flatten() {
        if !is_certificate(text) {
            return bad(format!("{field} of the donor is not base64 of a PEM certificate of at most {MAX_PEM} bytes"));
        }
    }
    Ok(())
}

fn is_token(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !text.is_empty() && text.len() <= MAX_TOKEN && text.bytes().all(allowed)
}

fn is_certificate(text: &str) -> bool {
    text.len() <= MAX_PEM
        && STANDARD.decode(text).is_ok_and(|pem| {
            let all: Result<Vec<CertificateDer<'_>>, _> = CertificateDer::pem_slice_iter(&pem).collect();
            all.is_ok_and(|certificates| !certificates.is_empty())
        })
}

/// Host and port of an https address; without a scheme it is taken for https.
fn host_and_port(address: &str) -> Option<(String, u16)> {
    let rest = match address.split_once("://") {
        Some(("https", rest)) => rest,
        Some(_) => return None,
        None => address,
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let authority: http::uri::Authority = rest.parse().ok()?;
    if rest.contains('@') || authority.host().is_empty() {
        return None;
    }
    let port = match authority.port() {
        Some(port) => port.as_str().parse().ok().filter(|port| *port != 0)?,
        None => 443,
    };
    Some((authority.host().to_ascii_lowercase(), port))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn donor() -> LiqoPeer {
        LiqoPeer { peering: "peer-1".into(), cluster: "north".into(), liqo_id: "north-liqo".into() }
    }

    fn params() -> IdentityParams {
        let pem = rcgen::generate_simple_self_signed(vec!["kubernetes".to_owned()]).unwrap().cert.pem();
        IdentityParams {
            ca: STANDARD.encode(&pem),
            credential: PeerCredential::Certificate(STANDARD.encode(&pem)),
            api_server: "https://10.0.0.1:6443".into(),
            tenant_namespace: "liqo-tenant-south".into(),
        }
    }

    fn token(text: &str) -> PeerCredential {
        PeerCredential::Token(crate::BearerToken::new(text.to_owned()))
    }

    #[test]
    fn only_what_the_donor_signed_is_accepted() {
        let good = params();
        for same in ["10.0.0.1:6443", "https://10.0.0.1:6443", "https://10.0.0.1:6443/"] {
            identity(&good, same, "south").unwrap();
        }
        let api = |text: &str| IdentityParams { api_server: text.into(), ..good.clone() };
        for (wrong, part) in [
            (api("https://10.0.0.2:6443"), "10.0.0.2:6443"),
            (api("https://10.0.0.1"), "key bundle"),
            (api("http://10.0.0.1:6443"), "not https"),
            (api("https://user@10.0.0.1:6443"), "not https"),
            (api("https://10.0.0.1:6443/path"), "not https"),
            (IdentityParams { tenant_namespace: "liqo-tenant-other".into(), ..good.clone() }, "tenant_namespace"),
            (IdentityParams { ca: "bm8=".into(), ..good.clone() }, "ca of"),
            (IdentityParams { credential: PeerCredential::Certificate("%".into()), ..good.clone() }, "certificate of"),
            (IdentityParams { credential: token(""), ..good.clone() }, "token of"),
            (IdentityParams { credential: token("a b"), ..good.clone() }, "token of"),
            (IdentityParams { credential: token("a\nb"), ..good.clone() }, "token of"),
        ] {
            let error = identity(&wrong, "10.0.0.1:6443", "south").unwrap_err();
            assert!(matches!(error, DeliveryError::Permanent { .. }) && error.to_string().contains(part), "{error}");
        }
        identity(&IdentityParams { credential: token("ey.ab-c_d"), ..good.clone() }, "10.0.0.1:6443", "south").unwrap();
        assert!(identity(&api("https://api.north.example"), "api.north.example:443", "south").is_ok());
        assert!(identity(&good, "", "south").is_err());
    }

    #[test]
    fn names_from_elsewhere_are_labels() {
        peer(&donor(), "south").unwrap();
        for wrong in ["", "North", "a_b", "-a", "a-", "a.b", "a/b", &"a".repeat(52)] {
            assert!(peer(&LiqoPeer { liqo_id: wrong.into(), ..donor() }, "south").is_err(), "{wrong}");
        }
        let error = peer(&donor(), "north-liqo").unwrap_err().to_string();
        assert!(error.contains("of this cluster"), "{error}");
        for wrong in ["kube-system", "liqo", "liqo-tenant-x", "comity-system", "", "A"] {
            assert!(target_namespace(wrong).is_err(), "{wrong}");
        }
        target_namespace("team-a").unwrap();
    }
}

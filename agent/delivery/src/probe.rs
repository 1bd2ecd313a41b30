//! Tests a lease by namespace: the donor's API must answer through the fabric, accept the credential and show the
//! quota.

use std::net::SocketAddr;

use comity_agent_model::delivery_error::DeliveryError;

use crate::ApiCredential;
use crate::https::HttpsServer;

/// Bytes of an unexpected answer that an error quotes.
const QUOTE: usize = 200;

/// Asks for the version, and for the quota in the lease's namespace.
pub(crate) async fn probe(credential: &ApiCredential, local_api: SocketAddr) -> Result<(), DeliveryError> {
    let operation = |path: &str| format!("read {path} of the donor through the fabric");
    let server = HttpsServer::new(local_api, &credential.tls_server_name, &credential.ca_pem)
        .map_err(|reason| DeliveryError::permanent("bad-credential", reason))?;
    let quotas = format!("/api/v1/namespaces/{}/resourcequotas/gpus", credential.namespace);
    for path in ["/version", quotas.as_str()] {
        let answer = server
            .get(path, &credential.token)
            .await
            .map_err(|reason| DeliveryError::temporary(operation(path), reason))?;
        if answer.status != 200 {
            let text = String::from_utf8_lossy(&answer.body).chars().take(QUOTE).collect::<String>();
            return Err(DeliveryError::temporary(operation(path), format!("it answers {}: {text}", answer.status)));
        }
    }
    Ok(())
}

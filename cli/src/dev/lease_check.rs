//! What the tenant sees of a lease on a donor without Kubernetes, through the tunnel.

use http::Request;
use kube::Client;
use serde_json::Value;

use crate::failure::Failure;

fn failed(step: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::refused("not-usable", format!("the lease cannot be used: {step}: {error}"))
}

fn quota_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/resourcequotas/gpus")
}

/// Checks that the quota is the lease's; returns a summary for people.
pub(super) async fn run(client: &Client, namespace: &str, gpus: u32) -> Result<String, Failure> {
    let get = Request::get(quota_path(namespace)).body(Vec::new()).map_err(|error| failed("quota", &error))?;
    let quota: Value = client.request(get).await.map_err(|error| failed("quota", &error))?;
    let hard = quota["status"]["hard"].as_object().into_iter().flatten();
    let counted = hard.filter_map(|(name, count)| Some((name.strip_prefix("requests.")?, count.as_str()?)));
    match counted.collect::<Vec<_>>()[..] {
        [(resource, count)] if count == gpus.to_string() => Ok(format!(
            "HTTPS through the tunnel to the donor's API: quota of {namespace} is exactly {gpus} {resource}"
        )),
        ref other => Err(failed("quota", &format!("it is {other:?} instead of {gpus} GPUs"))),
    }
}

/// How the API refuses the token; `None` while it accepts it.
pub(super) async fn token_refusal(client: &Client, namespace: &str) -> Option<String> {
    let get = Request::get(quota_path(namespace)).body(Vec::new()).ok()?;
    match client.request::<Value>(get).await {
        Err(kube::Error::Api(status)) if status.code == 401 => {
            Some("the token is refused by the donor (401)".to_owned())
        }
        _ => None,
    }
}

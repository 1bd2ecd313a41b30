//! The tenant's workload on a donor without Kubernetes: it calls the echo API through the tunnel.

use http::Request;
use kube::Client;
use serde_json::Value;

use crate::failure::Failure;

/// Text that the API must echo.
const ECHO_TEXT: &str = "hello from the origin, through the tunnel";

fn failed(step: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::refused("not-usable", format!("the lease cannot be used: {step}: {error}"))
}

fn quota_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/resourcequotas/gpus")
}

/// Checks the quota and calls the echo API; returns a summary for people.
pub(super) async fn run(client: &Client, namespace: &str, gpus: u32) -> Result<String, Failure> {
    let get = Request::get(quota_path(namespace)).body(Vec::new()).map_err(|error| failed("quota", &error))?;
    let quota: Value = client.request(get).await.map_err(|error| failed("quota", &error))?;
    if quota["gpus"] != gpus {
        return Err(failed("quota", &format!("it is {} instead of {gpus} GPUs", quota["gpus"])));
    }
    let post = Request::post("/echo").body(ECHO_TEXT.as_bytes().to_vec()).map_err(|error| failed("echo", &error))?;
    let answer: Value = client.request(post).await.map_err(|error| failed("echo", &error))?;
    if answer["echo"] != ECHO_TEXT {
        return Err(failed("echo", &"the answer has another text"));
    }
    let resource = quota["resource"].as_str().unwrap_or_default();
    Ok(format!("HTTPS through the tunnel to the donor's echo API: quota of {namespace} is exactly {gpus} {resource}"))
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

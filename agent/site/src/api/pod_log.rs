//! What a container has written.

use axum::body::{Body, Bytes};
use axum::extract::RawQuery;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures::stream;
use jiff::{SignedDuration, Timestamp};
use tokio::io::AsyncReadExt as _;

use super::lease_call::LeaseCall;
use crate::answers::{Refusal, is_true, number, parameters};
use crate::podman::LogOptions;
use crate::running::{PodPlan, container_name, container_ref};

/// Size of the parts in which a log is sent.
const LOG_PART: usize = 32 << 10;

/// `GET …/pods/{name}/log`, with Kubernetes' parameters but `previous`.
pub(super) async fn get(call: LeaseCall, RawQuery(query): RawQuery) -> Result<Response, Refusal> {
    let (_, entry) = call.pod()?;
    let host = call.host()?;
    let wrong = |message: String| Refusal::new(StatusCode::BAD_REQUEST, message);
    let parameters = parameters(query.as_deref());
    if is_true(&parameters, "previous") {
        return Err(wrong("previous: this host keeps the log of a container until it is started again".to_owned()));
    }
    let plan = PodPlan::of_stored(&entry.pod, &entry.resource)
        .map_err(|refusal| wrong(format!("{}: {}", refusal.field, refusal.reason)))?;
    let container = parameters.get("container").filter(|name| !name.is_empty()).unwrap_or(&plan.main.name);
    let index = plan.containers().position(|other| other.name == *container);
    let index = index.ok_or_else(|| wrong(format!("container {container} is not valid for pod {}", call.name)))?;
    let shown = entry.pod.status.as_ref().and_then(|status| container_ref(status, container));
    // One that is about to be started again has the log of its last run.
    if let Some(waiting) = shown.and_then(|shown| shown.state.as_ref()?.waiting.as_ref())
        && waiting.reason.as_deref() != Some("CrashLoopBackOff")
    {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        return Err(wrong(format!("container {container:?} in pod {:?} is waiting to start: {reason}", call.name)));
    }
    let since = match (number(&parameters, "sinceSeconds")?, parameters.get("sinceTime")) {
        (Some(seconds), _) => {
            let ago = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
            Some(host.now().0.checked_sub(ago).unwrap_or(Timestamp::UNIX_EPOCH))
        }
        (None, Some(text)) => {
            let time = text.parse::<Timestamp>();
            Some(time.map_err(|_| wrong(format!("sinceTime: {text:?} is no time of RFC 3339")))?)
        }
        (None, None) => None,
    };
    let options = LogOptions {
        follow: is_true(&parameters, "follow"),
        tail: number(&parameters, "tailLines")?,
        since: since.map(|time| time.to_string()),
        timestamps: is_true(&parameters, "timestamps"),
    };
    let limit = number(&parameters, "limitBytes")?.unwrap_or(u64::MAX);
    let log = host
        .podman
        .logs(&container_name(&entry, index), &options)
        .map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let parts = stream::try_unfold((log, limit), |(mut log, left)| async move {
        let mut part = vec![0; LOG_PART.min(usize::try_from(left).unwrap_or(LOG_PART))];
        let read = log.output.read(&mut part).await?;
        if read == 0 {
            return Ok::<_, std::io::Error>(None);
        }
        part.truncate(read);
        Ok(Some((Bytes::from(part), (log, left - read as u64))))
    });
    Ok(([(header::CONTENT_TYPE, "text/plain")], Body::from_stream(parts)).into_response())
}

//! Asks a broker for the history of the policy.

use std::time::Duration;

use comity_agent_model::status_reasons::reasons;
use comity_proto::v1;
use comity_proto::v1::agent_service_client::AgentServiceClient;
use comity_proto::v1::policy_history_part::Part;
use comity_runtime::BrokerChannel;
use comity_runtime::telemetry::TraceInjector;

use super::shown_objects::ShownObjects;
use super::verify::ShownHistory;

/// Time of the whole answer. The broker may fetch the repository first, for a minute.
const HISTORY_WITHIN: Duration = Duration::from_secs(120);
/// Bytes of one part: an object of 1 MiB, with room to spare.
const MAX_PART_BYTES: usize = 2 << 20;

/// The history from a verified commit, or from the beginning; `None` if the broker's policy comes from no repository.
///
/// # Errors
/// Why there is none, in one sentence.
pub(crate) async fn fetch(channel: BrokerChannel, verified: Option<String>) -> Result<Option<ShownHistory>, String> {
    let reading = read(channel, verified);
    let late = || Err(format!("the broker did not show the history within {} s", HISTORY_WITHIN.as_secs()));
    tokio::time::timeout(HISTORY_WITHIN, reading).await.unwrap_or_else(|_| late())
}

async fn read(channel: BrokerChannel, verified: Option<String>) -> Result<Option<ShownHistory>, String> {
    let mut client =
        AgentServiceClient::with_interceptor(channel, TraceInjector).max_decoding_message_size(MAX_PART_BYTES);
    let request = v1::GetPolicyHistoryRequest { verified_commit: verified.unwrap_or_default() };
    let answer = client.get_policy_history(request).await.map_err(|status| reasons(&status))?;
    let mut parts = answer.into_inner();
    let (mut head, mut objects) = (None, ShownObjects::default());
    while let Some(part) = parts.message().await.map_err(|status| reasons(&status))? {
        match part.part {
            Some(Part::Head(first)) if head.is_none() => head = Some(first),
            Some(Part::Object(object)) if head.is_some() => objects.take(object)?,
            _ => return Err("the parts of the history are not in their order".to_owned()),
        }
    }
    let v1::PolicyHead { commit, folder } = head.ok_or("the history is empty")?;
    if commit.is_empty() {
        return Ok(None);
    }
    let head = commit.parse().map_err(|_| "the commit in force is not a full commit id".to_owned())?;
    let folder = folder.parse().map_err(|_| "the policy's folder is not a valid path".to_owned())?;
    Ok(Some(ShownHistory { head, folder, objects }))
}

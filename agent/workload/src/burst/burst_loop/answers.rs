//! Handles the broker's answers.

use comity_proto::v1;

use super::{BurstLoop, RETRY_MS, broker_facts};
use crate::burst::PodRef;
use crate::burst::plan::BurstAction;
use crate::burst::requests::RequestError;
use crate::burst::snapshot::EndedRequest;
use crate::burst::worker::Answer;

/// How long a refused submission is not repeated.
const REFUSED_FOR_MS: u64 = 30_000;

/// How long a refused renewal is not repeated.
const RENEWAL_REFUSED_FOR_MS: u64 = 60_000;

impl BurstLoop {
    pub(super) async fn handle_answer(&mut self, answer: Answer) {
        let now = self.clock.unix_ms();
        match answer {
            Answer::Submitted { submission, result: Ok(request) } => {
                tracing::info!(
                    request = request.id,
                    pods = submission.pods.len(),
                    note = %submission.request.note,
                    "pods became a request"
                );
                self.failures.cleared(&submission.key);
                let facts = self.cluster.pods();
                for pod in submission.pods.iter().filter_map(|pod| facts.get(&pod.uid)) {
                    let mut after = self.assumed.get(&pod.pod.uid).map_or_else(|| pod.clone(), |b| b.after.clone());
                    after.request = Some(request.id.clone());
                    self.assume(pod.clone(), after, now);
                }
                self.submitted_ms.insert(request.id.clone(), now);
                self.note_request(&request, now);
                let snapshot = self.take_snapshot(now);
                let assign = |pod: &PodRef| BurstAction::Assign { pod: pod.clone(), request: request.id.clone() };
                self.act(&snapshot, submission.pods.iter().map(assign).collect()).await;
            }
            Answer::Submitted { submission, result: Err(error) } => {
                let note = &submission.request.note;
                if self.failures.is_new(&submission.key, &error.to_string()) {
                    tracing::warn!(%error, %note, "the broker refused a request; it is submitted again later");
                } else {
                    tracing::debug!(%error, %note, "the broker refused a request again");
                }
                let until = now + if matches!(error, RequestError::Unavailable(_)) { RETRY_MS } else { REFUSED_FOR_MS };
                self.refused.insert(submission.key, (error.to_string(), until));
            }
            Answer::Listed { began_ms, result: Ok(list) } => {
                let known = self.requests.take().unwrap_or_default();
                self.submitted_ms.retain(|_, at| *at >= began_ms);
                self.requests = Some(known.into_iter().filter(|(id, _)| self.submitted_ms.contains_key(id)).collect());
                list.iter().for_each(|request| self.note_request(request, now));
                self.listed_ms = now;
            }
            Answer::Got { result: Ok(request), .. } => self.note_request(&request, now),
            Answer::Got { request, result: Err(RequestError::NotFound(message)) } => {
                self.ended.insert(request, EndedRequest { has_failed: false, message, at_ms: now });
            }
            Answer::Cancelled { request, result: Ok(()) } => {
                if let Some(requests) = &mut self.requests {
                    requests.remove(&request);
                }
                self.submitted_ms.remove(&request);
            }
            Answer::Released { lease, result: Ok(()) } => tracing::info!(lease, "an idle lease was released"),
            Answer::Renewed { lease, result: Ok(()) } => tracing::info!(lease, "a lease that pods use was renewed"),
            Answer::Renewed { result: Err(RequestError::Unavailable(_)), .. } => {}
            Answer::Renewed { lease, result: Err(error) } => {
                tracing::warn!(lease, %error, "the broker does not renew a lease that pods use");
                self.renewals_refused.insert(lease, (error.to_string(), now + RENEWAL_REFUSED_FOR_MS));
            }
            Answer::Explained { request, result: Ok(answer) } => self.wait_reasons.take(&request, &answer),
            Answer::JobSize { uid, size } => drop(self.expected.insert(uid, size)),
            // The worker logged it, and retries with backoff.
            Answer::Listed { result: Err(_), .. }
            | Answer::Got { result: Err(_), .. }
            | Answer::Explained { result: Err(_), .. }
            | Answer::Cancelled { result: Err(_), .. }
            | Answer::Released { result: Err(_), .. } => {}
        }
    }

    fn note_request(&mut self, request: &v1::Request, now: u64) {
        match broker_facts::request(request, &self.cluster_id) {
            Some(facts) => {
                self.requests.get_or_insert_default().insert(request.id.clone(), facts);
            }
            None => {
                let has_failed = request.state() == v1::RequestState::Failed;
                let ended = EndedRequest { has_failed, message: request.message.clone(), at_ms: now };
                self.ended.insert(request.id.clone(), ended);
            }
        }
    }
}

//! The state copy: a Secret in the agent's own namespace.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use comity_agent_fabric::Fence;
use comity_agent_kubernetes::api::{CallError, within_limit};
use comity_agent_kubernetes::call::{call, call_opt, creating};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_state::state_copy::{MAX_IMAGE_BYTES, StateCopy, StateCopyError};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Name of the Secret.
pub const SECRET: &str = "comity-agent-state";
/// Its key.
const STATE_KEY: &str = "state";
/// Time of the last takeover. Writing it changes the resource version, so writes of the previous holder fail.
const TAKEN_ANNOTATION: &str = "comity.dev/taken-at";
/// Most attempts of a write while others change the Secret's metadata.
const MAX_TRIES: usize = 5;
/// Pause before the Secret is taken over again.
const TAKE_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Average bytes written each second: etcd keeps every version of the last minutes.
const BYTES_A_SECOND: usize = 2_000_000;

/// The Secret as this process last wrote or read it.
struct Known {
    secret: Secret,
    /// The image of the last write, which may have succeeded without an answer.
    sent: Vec<u8>,
    next_write: Instant,
}

/// Writes the Secret as its only writer.
pub(super) struct StateSecret {
    api: Api<Secret>,
    place: String,
    known: Mutex<Known>,
    /// Set to another writer, once there is one: this replica must end.
    replaced: watch::Sender<Option<String>>,
    runtime: Handle,
}

async fn take_once(api: &Api<Secret>, place: &str, fence: &Fence) -> Result<Secret, DeliveryError> {
    let missing = || {
        let message = format!("cannot take {place} over: it does not exist");
        DeliveryError::permanent("kubernetes-refused", message)
    };
    let mut secret = call_opt(&format!("read {place}"), api.get(SECRET)).await?.ok_or_else(missing)?;
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    secret.metadata.annotations.get_or_insert_default().insert(TAKEN_ANNOTATION.to_owned(), now);
    if !fence.is_open() {
        return Err(DeliveryError::temporary(format!("take {place} over"), "the Lease ended meanwhile"));
    }
    call(&format!("take {place} over"), api.replace(SECRET, &creating(), &secret)).await
}

fn image(secret: &Secret) -> Option<&[u8]> {
    secret.data.as_ref()?.get(STATE_KEY).map(|bytes| bytes.0.as_slice()).filter(|image| !image.is_empty())
}

impl StateSecret {
    /// Takes the Secret over, so that earlier writers fail, and returns its image if it has one. Only while the `fence`
    /// is open: a replica that was paused must not take it from its successor.
    pub(super) async fn take(
        client: Client,
        namespace: &str,
        fence: &Fence,
        replaced: watch::Sender<Option<String>>,
    ) -> Result<(Self, Option<Vec<u8>>), DeliveryError> {
        let api: Api<Secret> = Api::namespaced(client, namespace);
        let place = format!("Secret {namespace}/{SECRET}");
        let mut tries = 0;
        let secret = loop {
            tries += 1;
            match take_once(&api, &place, fence).await {
                Ok(taken) => break taken,
                // An earlier writer was faster, whose state counts, or the API server is busy.
                Err(error @ DeliveryError::Temporary { .. }) if tries < MAX_TRIES && fence.is_open() => {
                    tracing::debug!(%error, "the state's Secret is read again");
                    tokio::time::sleep(TAKE_RETRY_INTERVAL).await;
                }
                Err(error) => return Err(error),
            }
        };
        let found = image(&secret).map(<[u8]>::to_vec);
        let known = Mutex::new(Known { secret, sent: Vec::new(), next_write: Instant::now() });
        Ok((Self { api, place, known, replaced, runtime: Handle::current() }, found))
    }

    async fn write(&self, known: &mut Known, wanted: &[u8]) -> Result<(), StateCopyError> {
        let failed = |error: CallError| StateCopyError::Failed { place: self.place.clone(), reason: error.to_string() };
        for _ in 0..MAX_TRIES {
            let mut secret = known.secret.clone();
            secret.data.get_or_insert_default().insert(STATE_KEY.to_owned(), ByteString(wanted.to_vec()));
            known.sent = wanted.to_vec();
            match within_limit(self.api.replace(SECRET, &creating(), &secret)).await {
                Ok(written) => {
                    known.secret = written;
                    return Ok(());
                }
                Err(CallError::Status(status)) if status.code == 409 => {
                    let found = within_limit(self.api.get(SECRET)).await.map_err(failed)?;
                    if taken_at(&found) != taken_at(&known.secret) {
                        self.replaced.send_replace(Some(format!("the writer of {}", self.place)));
                        return Err(StateCopyError::Replaced { place: self.place.clone() });
                    }
                    // Somebody changed its metadata, or an own write had no answer.
                    known.secret = found;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Err(StateCopyError::Failed { place: self.place.clone(), reason: "others change it all the time".to_owned() })
    }
}

fn taken_at(secret: &Secret) -> Option<&String> {
    secret.metadata.annotations.as_ref()?.get(TAKEN_ANNOTATION)
}

impl StateCopy for StateSecret {
    fn put(&self, wanted: &[u8]) -> Result<(), StateCopyError> {
        if wanted.len() > MAX_IMAGE_BYTES {
            return Err(StateCopyError::TooLarge { place: self.place.clone(), bytes: wanted.len() });
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // A write without an answer may have succeeded after all.
        let is_settled = known.sent.is_empty() || known.sent == wanted;
        if is_settled && image(&known.secret) == Some(wanted) {
            return Ok(());
        }
        let now = Instant::now();
        std::thread::sleep(known.next_write.saturating_duration_since(now));
        let micros = wanted.len() * 1_000_000 / BYTES_A_SECOND;
        known.next_write = Instant::now() + Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        self.runtime.block_on(self.write(&mut known, wanted))
    }
}

//! `comity request submit`: submits a request and optionally waits for its lease.

use std::time::Duration;

use clap::Args;
use comity_proto::v1;
use comity_proto::v1::request_service_client::RequestServiceClient;

use super::ctrl_c::{CtrlC, stopped_submitting, stopped_waiting};
use super::follow::{Change, ChangeLines, Follower};
use super::read_spec::read_spec;
use super::spec_args::{FAILURES, OUTPUT, SpecArgs};
use crate::clock::now_ms;
use crate::failure::Failure;
use crate::output::{Page, note, write_stderr, write_stdout};
use crate::session::{Session, call, idempotency_key};
use crate::units::DurationBounds;
use crate::views::{QuotaUse, Request};

const SUBMIT_EXAMPLES: &str = "\
Examples:
  comity request submit --tenant poly-ml --origin polytech-campus --class frontier --gpus 3 --wait
  comity request submit -f request.yaml --wait --timeout 5m -o json

--help shows all flags by topic: sharing, topology, gangs, times, preemption.
";

const MORE_SUBMIT_EXAMPLES: &str = "\
Examples:
  comity request submit --tenant poly-ml --origin polytech-campus --class frontier --gpus 3 \\
      --duration 2h --wait
  comity request submit --tenant poly-ml --origin polytech-campus --class midrange --gpus 0.25 \\
      --dry-run
  comity request submit --tenant poly-ml --origin polytech-campus --class midrange --gpus 2 \\
      --mig 1g.10gb
  comity request submit --tenant poly-ml --origin polytech-campus --class frontier --gpus 2 \\
      --delivery virtual-node --namespace lab
  comity request submit --tenant poly-ml --origin polytech-campus --class frontier --gpus 8 \\
      --members 2-4 --nvlink required --rdma-gbits 400
  comity request submit --tenant poly-ml --origin polytech-campus --class frontier --gpus 1 \\
      --members 6-12 --spread-donors
  comity request submit --tenant poly-ml --origin polytech-campus --class frontier --gpus 4 \\
      --spread-nodes --data laion=40Ti
  comity request submit --tenant poly-ml --origin polytech-campus --template notebook-small \\
      --duration 2h
  comity request submit -f request.yaml --wait --timeout 5m -o json
  comity request submit --tenant poly-ml --origin polytech-campus --class frontier --gpus 8 \\
      --start-after 2026-11-23T18:00Z --start-by 12h

By default the lease is a namespace on the donor: get its kubeconfig with 'comity lease
kubeconfig'. With --delivery virtual-node it is a node in your cluster: 'comity lease show' shows
what pods of that namespace need to run there.

A request file has the same fields as the flags: 'comity request example' prints one. With --wait,
standard error shows the progress (placed, connecting, active), standard output the lease. Ctrl-C
ends the wait (exit code 130), not the request.
";

/// `comity request submit`.
#[derive(Debug, Args)]
#[command(after_help = SUBMIT_EXAMPLES, after_long_help = MORE_SUBMIT_EXAMPLES)]
pub struct SubmitArgs {
    #[command(flatten)]
    spec: SpecArgs,
    /// Queue the request even if no donor could ever serve it as things are (otherwise exit code 6)
    #[arg(long, help_heading = FAILURES, hide_short_help = true)]
    queue_anyway: bool,
    /// Key that makes a repeated call safe: the same key and request submit no second request [default: random]. Give
    /// start times as dates then, because 40s from now differs in each call
    #[arg(long, value_name = "KEY", help_heading = FAILURES, hide_short_help = true)]
    idempotency_key: Option<String>,
    /// Validate the request, but do not submit it
    #[arg(long, conflicts_with = "wait", help_heading = OUTPUT)]
    dry_run: bool,
    /// Wait until the lease is active or the request ends
    #[arg(long, help_heading = OUTPUT)]
    wait: bool,
    /// With --wait: stop waiting after this time (exit code 5); the request continues
    #[arg(long, requires = "wait", default_value = "10m", value_parser = DurationBounds::WAIT.parser(),
        allow_hyphen_values = true, value_name = "DURATION", help_heading = OUTPUT)]
    timeout: u64,
}

impl SubmitArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        let spec = read_spec(&self.spec)?;
        let channel = session.channel()?;
        let mut client = RequestServiceClient::new(channel.clone());
        let key = idempotency_key(self.idempotency_key.as_deref());
        let request = v1::SubmitRequestRequest {
            spec: Some(spec),
            idempotency_key: key.clone(),
            dry_run: self.dry_run,
            queue_anyway: self.queue_anyway,
        };
        let mut ctrl_c = CtrlC::listen()?;
        let submitted = ctrl_c
            .run_until(call(client.submit_request(request)), || stopped_submitting(&key))
            .await
            .map_err(|failure| with_retry_key(failure.written_in(self.spec.written_in()), &key))?;
        for warning in &submitted.warnings {
            note(&format!("warning: {warning}"));
        }
        let mut request = Request::from(submitted.request.unwrap_or_default());
        request.quotas = submitted.quotas.into_iter().map(QuotaUse::from).collect();
        let (true, Some(id)) = (self.wait, request.id.clone()) else {
            return session.print(&request);
        };
        note(&format!("{id} submitted"));
        let follower = Follower::new(channel, &id);
        let mut lines = ChangeLines::default();
        let report = |change: &Change| {
            write_stderr(lines.next(change, now_ms(), Page::stderr())?);
            Ok(())
        };
        let followed = follower.until_active(Some(Duration::from_millis(self.timeout)), report);
        let followed = ctrl_c.run_until(followed, || stopped_waiting(&id)).await?;
        match &followed.lease {
            // A gang over several donors: print its leases one after another.
            Some(lease) if !followed.other_leases.is_empty() => {
                session.print_event(lease)?;
                for lease in &followed.other_leases {
                    if !session.format.is_for_scripts() {
                        write_stdout("\n")?;
                    }
                    session.print_event(lease)?;
                }
            }
            Some(lease) => session.print(lease)?,
            None => session.print(&followed.request)?,
        }
        followed.into_result()
    }
}

/// Adds the idempotency key to the remedy if the broker may have the request, so that a retry is safe.
fn with_retry_key(failure: Failure, key: &str) -> Failure {
    if failure.exit == crate::exit::Exit::Unavailable {
        let remedy = format!("{}; to retry safely, add --idempotency-key {key}", failure.remedy);
        return failure.remedy(remedy);
    }
    failure
}

//! `comity lease renew`: starts a new term.

use clap::Args;
use comity_proto::v1;
use comity_proto::v1::lease_service_client::LeaseServiceClient;

use super::get_lease::get_lease;
use crate::clock::now_ms;
use crate::commands::completions::known_ids;
use crate::confirm::ConfirmArgs;
use crate::failure::Failure;
use crate::session::{Session, call, idempotency_key};
use crate::units::{DurationBounds, format_time};
use crate::views::Lease;

const RENEW_EXAMPLES: &str = "\
Examples:
  comity lease renew lease-7                    start a new term of the same length
  comity lease renew lease-7 --duration 8h
  comity lease renew lease-7 --duration 10m --shorten      end it earlier; asks first

A renewal that would end the lease earlier than before is refused without --shorten.
";

/// `comity lease renew`.
#[derive(Debug, Args)]
#[command(after_help = RENEW_EXAMPLES)]
pub struct LeaseRenewArgs {
    /// Lease, as in lease-7
    #[arg(add = known_ids::leases())]
    lease: String,
    /// Length of the new term: 10s to 90d [default: as before]
    #[arg(long, value_parser = DurationBounds::LEASE.parser(), allow_hyphen_values = true)]
    duration: Option<u64>,
    /// Let the lease end earlier than before
    #[arg(long)]
    shorten: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// Key that makes a repeated call safe: the same key has no second effect [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

impl LeaseRenewArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<Lease, Failure> {
        if self.shorten && self.confirm.asks() {
            self.confirm.check_terminal()?;
            let lease = get_lease(session, &self.lease).await?;
            if let Some(question) = self.question(&lease, now_ms()) {
                self.confirm.ask(&question)?;
            }
        }
        let request = v1::RenewLeaseRequest {
            lease: self.lease.clone(),
            duration_ms: self.duration.unwrap_or(0),
            idempotency_key: idempotency_key(self.idempotency_key.as_deref()),
            may_shorten: self.shorten,
        };
        let mut client = LeaseServiceClient::new(session.channel()?);
        Ok(call(client.renew_lease(request)).await?.lease.unwrap_or_default().into())
    }

    /// The question before a renewal at `now_ms`; none if it would not shorten the lease.
    fn question(&self, lease: &Lease, now_ms: u64) -> Option<String> {
        let present = lease.expires_at_ms?;
        let end = now_ms.saturating_add(self.duration.unwrap_or(lease.term_ms));
        let time = |ms| format_time(ms).unwrap_or_else(|| ms.to_string());
        (end < present).then(|| format!("{} would end at {} instead of {}.", lease.id, time(end), time(present)))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        renew: LeaseRenewArgs,
    }

    #[test]
    fn only_an_earlier_end_is_asked_about() {
        const NOW: u64 = 1_795_420_800_000;
        let lease = v1::Lease {
            id: "lease-7".to_owned(),
            term_ms: 14_400_000,
            expires_at_ms: NOW + 3_600_000,
            ..v1::Lease::default()
        };
        let lease = Lease::from(lease);
        let question = |more: &[&str]| {
            let line = Line::parse_from([&["renew", "lease-7", "--shorten"][..], more].concat());
            line.renew.question(&lease, NOW)
        };
        let asked = question(&["--duration", "10s"]).expect("asked");
        assert_eq!(asked, "lease-7 would end at 2026-11-23T08:00:10Z instead of 2026-11-23T09:00:00Z.");
        assert_eq!(question(&[]), None);
        assert_eq!(question(&["--duration", "1h"]), None);
    }
}

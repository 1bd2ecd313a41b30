//! Keeps brokers that answers named in the context, so that later commands reach a group whose first broker is down.

use comity_runtime::telemetry::CALLS_TARGET;

use super::{ContextBrokers, Session};

impl Session {
    /// Writes the learnt brokers to the context that this run used. The command has done its work, so a failure is only
    /// logged; the next command tries again.
    pub fn keep_learnt_brokers(&self) {
        let (Some(ContextBrokers { context, brokers }), Some(contexts)) = (self.known.get(), &self.contexts) else {
            return;
        };
        if let Err(error) = contexts.set_learnt(context, brokers) {
            tracing::warn!(target: CALLS_TARGET, %error, "cannot keep the addresses of the brokers");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use clap::Parser as _;
    use comity_runtime::contexts::Contexts;
    use comity_runtime::{CertificateAuthority, SpiffeId, TrustDomain};

    use super::*;

    /// The learnt brokers of the context after a run with `args` that was told of `b2.test`.
    fn learnt_after(args: &[&str]) -> Option<String> {
        let home = tempfile::tempdir().expect("made");
        let contexts = Contexts::new(home.path());
        let domain: TrustDomain = "dev.test".parse().expect("valid");
        let authority = CertificateAuthority::create(domain.clone(), SystemTime::now()).expect("made");
        let id = SpiffeId::user(domain, "alice".parse().expect("valid"));
        let pem = authority.new_identity(&id, &[], Duration::from_secs(60), SystemTime::now()).expect("issued");
        contexts.save("dev", &"b1.test:7443".parse().expect("valid"), &pem).expect("saved");
        contexts.set_current("dev").expect("set");
        let parsed = crate::Args::try_parse_from([&["comity"], args, &["whoami"]].concat()).expect("parsed");
        let session = Session { contexts: Some(contexts.clone()), ..Session::new(&parsed.global) };
        session.known_brokers().expect("known").learn(&"b1.test:7443,b2.test:7443".parse().expect("valid"));
        session.keep_learnt_brokers();
        contexts.load("dev").expect("read").learnt.map(|learnt| learnt.to_string())
    }

    #[test]
    fn only_a_run_with_a_context_learns() {
        assert_eq!(learnt_after(&["--context", "dev"]).as_deref(), Some("b2.test:7443"));
        assert_eq!(learnt_after(&["--context", "dev", "--broker", "b1.test:7443"]), None);
    }
}

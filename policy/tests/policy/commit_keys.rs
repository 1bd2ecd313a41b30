//! `commitKeys` and `signatures`: what is refused.

use comity_policy::{Bundle, BundleSource, ProblemCode, SourceFile};

const ADA: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKSGFHN1LIBMn7TCZCHlpXp+hmjmZyxjj6/rXTnCUVlL";

fn compile(federation: &str, institution: &str) -> Result<Bundle, Vec<(ProblemCode, String)>> {
    let document = |kind: &str, name: &str, spec: &str| {
        format!("apiVersion: policy.comity.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n---\n")
    };
    let federation = format!("trustDomain: t.example, maintainers: [spiffe://t.example/user/ada]{federation}");
    let institution = format!("displayName: X, contact: a@x{institution}");
    let text = document("Federation", "f", &federation) + &document("Institution", "x", &institution);
    let files = vec![SourceFile { path: "all.yaml".to_owned(), text }];
    Bundle::compile(&BundleSource::of_files(files))
        .map_err(|problems| problems.into_iter().map(|problem| (problem.code, problem.message)).collect())
}

fn of_ada(key: &str) -> String {
    format!(", commitKeys: [{{maintainer: spiffe://t.example/user/ada, key: {key}}}]")
}

#[test]
fn keys_and_signatures_are_read() {
    let signatures = ", signatures: {required: true, maintainersNeeded: 1}";
    let bundle = compile(&(of_ada(ADA) + signatures), "").unwrap();
    let federation = bundle.federation.spec;
    assert_eq!(federation.commit_keys[0].key.key, ADA);
    assert!(federation.signatures.required && federation.signatures.maintainers_needed == 1);
    let ends = compile("", &format!(", commitKeys: [{{key: {ADA} ada@host, until: 2026-12-31}}]")).unwrap();
    let key = &ends.institutions["x"].spec.commit_keys[0];
    assert_eq!(key.key, ADA);
    // The last millisecond of the day counts, and the next one does not.
    let midnight = 1_798_761_600_000;
    assert!(key.is_valid_at(midnight - 1) && !key.is_valid_at(midnight));
}

#[test]
fn keys_that_would_count_for_two_or_for_nobody_are_refused() {
    let of_x = format!(", commitKeys: [{{key: {ADA}}}]");
    let rsa = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7";
    let cases: [(String, String, ProblemCode, &str); 8] = [
        (of_ada(ADA), of_x.clone(), ProblemCode::DuplicateName, "listed twice (Institution `x` and maintainer"),
        (
            String::new(),
            format!(", commitKeys: [{{key: {ADA}}}, {{key: {ADA} b}}]"),
            ProblemCode::DuplicateName,
            "twice",
        ),
        (of_ada(ADA).replace("user/ada", "user/bob"), String::new(), ProblemCode::UnknownReference, "is no maintainer"),
        (
            of_ada(ADA) + ", signatures: {required: true}",
            String::new(),
            ProblemCode::Contradiction,
            "but 1 maintainers",
        ),
        (of_ada("ssh-ed25519 AAAA"), String::new(), ProblemCode::InvalidKey, "is not a public key that can sign"),
        (of_ada(rsa), String::new(), ProblemCode::InvalidKey, "is not a public key that can sign"),
        (String::new(), of_x.replace("}", ", until: soon}"), ProblemCode::InvalidDate, "until: soon"),
        (", signatures: {required: maybe}".to_owned(), String::new(), ProblemCode::InvalidValue, "required: maybe"),
    ];
    for (federation, institution, code, text) in cases {
        let problems = compile(&federation, &institution).expect_err(text);
        assert!(
            problems.iter().any(|(found, message)| *found == code && message.contains(text)),
            "{code:?} {text}: {problems:#?}"
        );
    }
}

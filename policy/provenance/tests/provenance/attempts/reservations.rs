//! Attempts to withhold, without their owners, GPUs that others lend.

use super::super::repository::{Repository, document};
use super::{Attempt, each_is_refused};

const RESERVATION: &str =
    "tenant: ml, class: large, gpus: 8, clusters: [centre-main], during: lessons, releaseUnusedAfter: 30m";

/// A schedule, and a reservation during it.
fn write(repository: &Repository, reservation: &str) {
    let windows = "timeZone: Europe/Zurich, windows: [{days: [tue], from: '09:00', until: '12:00'}]";
    repository.write("lessons.yaml", &document("Schedule", "lessons", windows));
    repository.write("reservation.yaml", &document("Reservation", "course", reservation));
}

/// A reservation in force at the cluster of `centre`.
pub(crate) fn reserve(repository: &mut Repository) {
    write(repository, RESERVATION);
    let change = repository.commit(Some("ingrid"), "a course");
    repository.approve("centre", change);
    repository.take_into_force();
}

/// Makes `poly` a donor too, so that both keep GPUs for the course.
pub(crate) fn reserve_at_both(repository: &mut Repository) {
    let terms = "institution: poly, lends: [{classes: [large]}]";
    repository.write("poly-cluster.yaml", &document("Cluster", "poly-farm", terms));
    write(repository, &RESERVATION.replace("[centre-main]", "[centre-main, poly-farm]"));
    let change = repository.commit(Some("ingrid"), "a course");
    repository.approve("centre", change);
    repository.approve("poly", change);
    repository.take_into_force();
}

fn to_withhold() -> Vec<Attempt> {
    vec![
        (
            "a maintainer reserves the GPUs of an institution",
            |repository| {
                write(repository, RESERVATION);
                repository.commit(Some("ingrid"), "x");
            },
            "unsigned",
            "changes Reservation `course` without the signature of institution `centre`: it is signed by maintainer",
        ),
        (
            "an institution reserves the GPUs of another one for its own tenant",
            |repository| {
                write(repository, RESERVATION);
                let change = repository.commit(Some("ingrid"), "x");
                repository.approve("poly", change);
            },
            "unsigned",
            "changes Reservation `course` without the signature of institution `centre`",
        ),
        (
            "an institution adds another one's cluster to what it keeps itself",
            |repository| {
                let terms = "institution: poly, lends: [{classes: [large]}]";
                repository.write("poly-cluster.yaml", &document("Cluster", "poly-farm", terms));
                write(repository, &RESERVATION.replace("centre-main", "poly-farm"));
                let change = repository.commit(Some("ingrid"), "x");
                repository.approve("poly", change);
                repository.take_into_force();
                repository.edit("reservation.yaml", "[poly-farm]", "[poly-farm, centre-main]");
                repository.commit(Some("poly"), "y");
            },
            "unsigned",
            "changes Reservation `course` without the signature of institution `centre`",
        ),
        (
            "a maintainer raises a reservation",
            |repository| {
                reserve(repository);
                repository.edit("reservation.yaml", "gpus: 8", "gpus: 80");
                repository.commit(Some("ingrid"), "x");
            },
            "unsigned",
            "changes Reservation `course` without the signature of institution `centre`",
        ),
        (
            "a maintainer lets a reservation follow another schedule",
            |repository| {
                reserve(repository);
                let windows = "timeZone: UTC, windows: [{days: [mon], from: '00:00', until: '24:00'}]";
                repository.write("mondays.yaml", &document("Schedule", "mondays", windows));
                repository.edit("reservation.yaml", "during: lessons", "during: mondays");
                repository.commit(Some("ingrid"), "x");
            },
            "unsigned",
            "without the signature of institution `centre`",
        ),
        (
            "a maintainer gives what is reserved to another tenant",
            |repository| {
                reserve(repository);
                let of_tenant = "institution: keyless, members: [{id: spiffe://t.example/user/eve, role: submitter}], \
                                 classes: [large], clusters: [keyless-pc]";
                repository.write("other.yaml", &document("Tenant", "other", of_tenant));
                repository.edit("reservation.yaml", "tenant: ml", "tenant: other");
                repository.commit(Some("ingrid"), "x");
            },
            "unsigned",
            "changes Reservation `course` without the signature of institution `centre`",
        ),
        (
            "one of two donors takes the other one's cluster out",
            |repository| {
                reserve_at_both(repository);
                repository.edit("reservation.yaml", "[centre-main, poly-farm]", "[poly-farm]");
                repository.commit(Some("poly"), "x");
            },
            "unsigned",
            "changes Reservation `course` without the signature of institution `centre`",
        ),
    ]
}

fn to_widen() -> Vec<Attempt> {
    vec![
        (
            "a maintainer widens the windows of a reservation",
            |repository| {
                reserve(repository);
                repository.edit("lessons.yaml", "[tue]", "[mon, tue, wed, thu, fri]");
                repository.commit(Some("ingrid"), "x");
            },
            "unsigned",
            "changes Schedule `lessons` without the signature of institution `centre`: it is signed by maintainer",
        ),
        (
            "an institution of the tenant widens the windows of a reservation, with a maintainer",
            |repository| {
                reserve(repository);
                repository.edit("lessons.yaml", "until: '12:00'", "until: '18:00'");
                let change = repository.commit(Some("ingrid"), "x");
                repository.approve("poly", change);
            },
            "unsigned",
            "changes Schedule `lessons` without the signature of institution `centre`",
        ),
    ]
}

#[test]
fn nobody_else_withholds_what_an_institution_lends() {
    each_is_refused(&to_withhold());
}

#[test]
fn nobody_else_widens_the_windows_of_a_reservation() {
    each_is_refused(&to_widen());
}

//! What else may be at the socket, or in its place.

use super::world::{Process, STRANGER, Scene};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

/// Where rank 0 of a scene listens.
fn socket(scene: &Scene) -> PathBuf {
    let digest = blake3::hash(&[scene.role.key; 32]).to_hex();
    scene.folder().join(format!("{}-rank-0.sock", &digest[..16]))
}

/// A connection of somebody who is none of ours.
fn stranger(path: &Path) -> OwnedFd {
    let address = SocketAddrUnix::new(path).unwrap();
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    while rustix::net::connect(&socket, &address).is_err() {
        std::thread::yield_now();
    }
    socket
}

fn say(to: &OwnedFd, bytes: &[u8]) {
    rustix::net::send(to, bytes, SendFlags::NOSIGNAL).unwrap();
}

/// A host that waits for its guest.
fn host(scene: &Scene) -> Process {
    let mut host = scene.start(&[0]);
    host.tell("connect");
    host
}

fn meets(scene: &Scene, mut host: Process) {
    let mut guest = scene.start(&[1]);
    assert_eq!(guest.meet()["error"], Value::Null);
    assert_eq!(host.answer()["error"], Value::Null);
    for p in [&mut guest, &mut host] {
        p.ask("drop");
        p.assert_clean();
    }
    scene.assert_no_socket();
}

#[test]
fn garbage_half_open_connections_and_crowds_do_not_keep_a_meeting_from_being() {
    let scene = Scene::of(2);
    let host = host(&scene);
    let mut kept = Vec::new();
    for words in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"mk-nvlink", b"mk-nvlink 1\n{\"hello\"", b"\xff", &[b'x'; 100_000]]
    {
        let line = stranger(&socket(&scene));
        say(&line, words);
        kept.push(line);
    }
    // Some hang up, more than it listens to say nothing at all.
    drop(stranger(&socket(&scene)));
    kept.extend((0..300).map(|_| stranger(&socket(&scene))));
    // One who came to another meeting.
    let other = stranger(&socket(&scene));
    let hello = r#"{"hello":{"purpose":{"key":"00","topology":"","bytes":1,"offers":""},"ranks":[1],"patience_ms":1}}"#;
    say(&other, format!("mk-nvlink 1\n{hello}").as_bytes());
    meets(&scene, host);
}

#[test]
fn descriptors_that_strangers_send_are_closed() {
    let scene = Scene::of(2);
    let host = host(&scene);
    let line = stranger(&socket(&scene));
    let file = std::fs::File::open("/dev/null").unwrap();
    let rights = [std::os::fd::AsFd::as_fd(&file); 3];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&rights)));
    let bytes = [std::io::IoSlice::new(b"here you are")];
    rustix::net::sendmsg(&line, &bytes, &mut control, SendFlags::empty()).unwrap();
    meets(&scene, host);
}

#[test]
fn a_guest_of_another_version_is_an_error_that_names_both_versions() {
    let scene = Scene::hurried(2, 800);
    let mut host = host(&scene);
    say(&stranger(&socket(&scene)), b"mk-nvlink 7\n[]");
    let error = &host.answer()["error"];
    assert_eq!(error["message"], "a process came that speaks version 7 of the protocol, not 1");
    assert_eq!((&error["given"], &error["allowed"]), (&"version 7".into(), &"version 1".into()));
    host.assert_clean();
    scene.assert_no_socket();
}

/// A guest that says `hello` for rank 1 and then something else.
fn guest_says(then: &[u8]) -> Value {
    let scene = Scene::hurried(2, 3000);
    let mut host = host(&scene);
    // What a true guest says first.
    let topology = mk_core::Topology::from_toml(&scene.role.topology).unwrap();
    let hash = blake3::hash(topology.to_toml().as_bytes()).to_hex();
    let key = blake3::Hash::from_bytes([scene.role.key; 32]).to_hex();
    let offers = "PUT | GET | SIGNAL | ATOMIC_ADD | REDUCE | ORDERED";
    let hello = format!(
        r#"{{"hello":{{"purpose":{{"key":"{key}","topology":"2 ranks ({})","bytes":{},"offers":"{offers}"}},"ranks":[1],"patience_ms":3000}}}}"#,
        &hash[..16],
        scene.role.bytes
    );
    let line = stranger(&socket(&scene));
    say(&line, format!("mk-nvlink 1\n{hello}").as_bytes());
    say(&line, then);
    let answer = host.answer();
    assert!(answer["ms"].as_u64().unwrap() < 2500, "{answer}");
    host.assert_clean();
    scene.assert_no_socket();
    answer["error"]["message"].clone()
}

#[test]
fn a_guest_that_sends_what_has_no_meaning_is_named() {
    for (then, words) in [
        (&b"garbage"[..], "it is no message of this protocol"),
        (b"mk-nvlink 1\n\"done\"", "it is another message than was due"),
        (b"mk-nvlink 1\n{\"verdict\":null}", "it is another message than was due"),
        (b"mk-nvlink 1\n{\"given\":[]}", "0 descriptors for 0 ranks"),
        (b"mk-nvlink 1\n{\"given\":[{\"rank\":1,\"bytes\":1,\"gpu\":\"\"}]}", "0 descriptors for 1 ranks"),
        (&[b'x'; 100_000], "more than 65536 bytes"),
    ] {
        let message = guest_says(then);
        let message = message.as_str().unwrap();
        assert!(message.starts_with("rank 1 was to ") && message.contains(words), "{message}");
    }
}

#[test]
fn the_socket_of_a_process_that_has_ended_is_put_away() {
    let scene = Scene::of(2);
    std::fs::create_dir(scene.folder()).unwrap();
    // A socket that nobody listens at.
    drop(UnixListener::bind(socket(&scene)).unwrap());
    assert!(socket(&scene).exists());
    // A guest that comes first waits.
    let mut guest = scene.start(&[1]);
    guest.tell("connect");
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut host = scene.start(&[0]);
    assert_eq!(host.meet()["error"], Value::Null);
    assert_eq!(guest.answer()["error"], Value::Null);
    scene.assert_no_socket();
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let scene = Scene::hurried(2, 500);
    std::fs::create_dir(scene.folder()).unwrap();
    std::fs::set_permissions(scene.folder(), PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(socket(&scene), "somebody's").unwrap();
    let mut host = scene.start(&[0]);
    let answer = host.meet();
    assert_eq!(answer["error"]["kind"], "taken");
    assert!(answer["error"]["message"].as_str().unwrap().ends_with("it is no socket"), "{answer}");
    host.assert_clean();
    assert_eq!(std::fs::read_to_string(socket(&scene)).unwrap(), "somebody's");
}

#[test]
fn a_host_that_is_none_of_ours_is_named() {
    let scene = Scene::hurried(2, 800);
    std::fs::create_dir(scene.folder()).unwrap();
    std::fs::set_permissions(scene.folder(), PermissionsExt::from_mode(0o700)).unwrap();
    let listening = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&listening, &SocketAddrUnix::new(socket(&scene)).unwrap()).unwrap();
    rustix::net::listen(&listening, 1).unwrap();
    let mut guest = scene.start(&[1]);
    guest.tell("connect");
    let line = rustix::net::accept(&listening).unwrap();
    say(&line, b"hello yourself");
    let answer = guest.answer();
    let message = answer["error"]["message"].as_str().unwrap();
    let want = "rank 0 was to pass the others' memory on, and sent what has no meaning: it is no message";
    assert!(message.starts_with(want), "{message}");
    guest.assert_clean();
}

/// A process of another user, which only root can start. It says when it has done what it was started for.
fn of_another_user(does: &str, path: &Path) -> Option<(std::process::Child, BufReader<ChildStdout>)> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "strangers::another_user", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(STRANGER, format!("{does} {}", path.display()));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).uid(1).gid(1);
    let mut child = command.spawn().map_err(|e| println!("skipped: {e}")).ok()?;
    let output = BufReader::new(child.stdout.take().unwrap());
    Some((child, output))
}

/// Waits until it has done that.
fn done(output: &mut BufReader<ChildStdout>) {
    assert!(output.lines().any(|line| line.unwrap().contains("@done")));
}

#[test]
#[ignore = "the other tests start it, as another user"]
fn another_user() {
    let Ok(told) = std::env::var(STRANGER) else { return };
    let (does, path) = told.split_once(' ').unwrap();
    let _open = if does == "listen" {
        let listening = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::bind(&listening, &SocketAddrUnix::new(path).unwrap()).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
        rustix::net::listen(&listening, 1).unwrap();
        listening
    } else {
        // Of somebody who is let in, this would be an error.
        let line = stranger(Path::new(path));
        let _ = rustix::net::send(&line, b"mk-nvlink 7\n[]", SendFlags::NOSIGNAL);
        line
    };
    println!("\n@done");
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_guest_of_another_user_is_sent_away() {
    let scene = Scene::of(2);
    let host = host(&scene);
    drop(stranger(&socket(&scene)));
    for (path, mode) in
        [(scene.root().to_path_buf(), 0o755), (scene.folder(), 0o755), (socket(&scene), 0o777)]
    {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    let other = of_another_user("say", &socket(&scene));
    let Some((mut child, mut output)) = other else { return };
    done(&mut output);
    meets(&scene, host);
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn a_host_of_another_user_is_refused() {
    let scene = Scene::hurried(2, 800);
    std::fs::create_dir(scene.folder()).unwrap();
    std::fs::set_permissions(scene.root(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(scene.folder(), PermissionsExt::from_mode(0o777)).unwrap();
    let Some((mut child, mut output)) = of_another_user("listen", &socket(&scene)) else { return };
    done(&mut output);
    std::fs::set_permissions(scene.folder(), PermissionsExt::from_mode(0o755)).unwrap();
    let mut guest = scene.start(&[1]);
    let message = guest.meet()["error"]["message"].clone();
    let message = message.as_str().unwrap();
    assert!(message.ends_with("is in use: a process of another user waits there"), "{message}");
    guest.assert_clean();
    drop(child.stdin.take());
    child.wait().unwrap();
}

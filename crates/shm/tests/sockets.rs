//! Descriptors over a socket, and the peer behind it.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

use orbitkv_shm::{
    MAX_FDS, Mapping, PAGE_BYTES, PidfdError, Segment, peer_credentials, peer_pidfd, recv_with_fds,
    send_with_fds,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_getfd};

fn send(sock: &UnixStream, data: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send_with_fds(sock.as_fd(), &[IoSlice::new(data)], fds)
}

#[test]
fn bytes_travel_without_descriptors_and_in_parts() {
    let (left, right) = UnixStream::pair().unwrap();
    let parts = [IoSlice::new(b"head"), IoSlice::new(b""), IoSlice::new(b"body")];
    assert_eq!(send_with_fds(left.as_fd(), &parts, &[]).unwrap(), 8);
    let (mut buf, mut fds) = ([0; 16], Vec::new());
    assert_eq!(recv_with_fds(right.as_fd(), &mut buf, &mut fds, 4).unwrap(), 8);
    assert_eq!(&buf[..8], b"headbody");
    assert!(fds.is_empty());
    drop(left);
    assert_eq!(recv_with_fds(right.as_fd(), &mut buf, &mut fds, 4).unwrap(), 0, "end of stream");
}

#[test]
fn several_segments_travel_in_one_message_and_map() {
    let (left, right) = UnixStream::pair().unwrap();
    let segments: Vec<_> = (0..3_u8)
        .map(|number| {
            let segment = Segment::create("sent", PAGE_BYTES).unwrap();
            segment.write_at(9, &[number + 1]).unwrap();
            segment
        })
        .collect();
    let borrowed: Vec<_> = segments.iter().map(AsFd::as_fd).collect();
    send(&left, b"three", &borrowed).unwrap();
    let (mut buf, mut fds) = ([0; 16], Vec::new());
    assert_eq!(recv_with_fds(right.as_fd(), &mut buf, &mut fds, 8).unwrap(), 5);
    assert_eq!(fds.len(), 3);
    for (number, fd) in fds.into_iter().enumerate() {
        assert!(fcntl_getfd(&fd).unwrap().contains(FdFlags::CLOEXEC));
        let mut seen = [0];
        Mapping::from_fd(fd, PAGE_BYTES).unwrap().read_at(9, &mut seen).unwrap();
        assert_eq!(usize::from(seen[0]), number + 1, "order is kept");
    }
}

#[test]
fn descriptors_beyond_the_limit_are_closed() {
    let (left, right) = UnixStream::pair().unwrap();
    let (read_end, write_end) = rustix::pipe::pipe().unwrap();
    send(&left, b"x", &[write_end.as_fd(), write_end.as_fd(), write_end.as_fd()]).unwrap();
    drop(write_end);
    let (mut buf, mut fds) = ([0; 4], Vec::new());
    recv_with_fds(right.as_fd(), &mut buf, &mut fds, 1).unwrap();
    assert_eq!(fds.len(), 1);
    let mut polled = [PollFd::new(&read_end, PollFlags::IN)];
    let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(poll(&mut polled, Some(&no_wait)).unwrap(), 0, "one write end is still open");
    fds.clear();
    let mut polled = [PollFd::new(&read_end, PollFlags::IN)];
    poll(&mut polled, Some(&no_wait)).unwrap();
    assert!(polled[0].revents().contains(PollFlags::HUP), "the two others were closed on receipt");
}

#[test]
fn messages_that_cannot_travel_are_refused() {
    let (left, right) = UnixStream::pair().unwrap();
    let many = vec![left.as_fd(); MAX_FDS + 1];
    assert_eq!(send(&left, b"x", &many).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(send(&left, b"", &many[..1]).unwrap_err().kind(), ErrorKind::InvalidInput);
    send(&left, b"x", &many[1..]).unwrap();
    let mut fds: Vec<OwnedFd> = Vec::new();
    assert_eq!(
        recv_with_fds(right.as_fd(), &mut [], &mut fds, 1).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    recv_with_fds(right.as_fd(), &mut [0; 4], &mut fds, MAX_FDS).unwrap();
    assert_eq!(fds.len(), MAX_FDS);
}

#[test]
fn a_closed_peer_is_an_error_and_no_signal() {
    let (left, right) = UnixStream::pair().unwrap();
    drop(right);
    assert_eq!(send(&left, b"x", &[]).unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_full_or_empty_socket_would_block() {
    let (left, right) = UnixStream::pair().unwrap();
    left.set_nonblocking(true).unwrap();
    right.set_nonblocking(true).unwrap();
    let mut fds = Vec::new();
    let empty = recv_with_fds(right.as_fd(), &mut [0; 4], &mut fds, 1).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::WouldBlock);
    let full = loop {
        if let Err(error) = send(&left, &[0; 4096], &[]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
}

#[test]
fn the_peer_is_this_process() {
    let (left, _right) = UnixStream::pair().unwrap();
    let peer = peer_credentials(left.as_fd()).unwrap();
    assert_eq!(peer.pid, Some(std::process::id()));
    assert_eq!(peer.uid, rustix::process::getuid().as_raw());
    assert_eq!(peer.gid, rustix::process::getgid().as_raw());
}

const CHILD: &str = "ORBITKV_SHM_TEST_CONNECT";

/// The pidfd is readable when the peer has exited, and not before; its socket's end proves nothing.
#[test]
fn a_pidfd_fires_at_exit_and_not_at_close() {
    if let Some(path) = std::env::var_os(CHILD) {
        drop(UnixStream::connect(path).unwrap());
        // Lives on with its socket closed until the parent closes our standard input.
        io::copy(&mut io::stdin(), &mut io::sink()).unwrap();
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_pidfd_fires_at_exit_and_not_at_close"])
        .env(CHILD, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (sock, _) = listener.accept().unwrap();
    let pidfd = peer_pidfd(sock.as_fd()).unwrap();
    let mut fds = Vec::new();
    assert_eq!(recv_with_fds(sock.as_fd(), &mut [0; 1], &mut fds, 0).unwrap(), 0, "the socket has ended");
    let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
    assert_eq!(poll(&mut polled, Some(&no_wait)).unwrap(), 0, "the process has not");
    drop(child.stdin.take());
    assert_eq!(poll(&mut polled, None).unwrap(), 1, "exit makes it readable");
    assert!(child.wait().unwrap().success());
    // Once reaped, no fresh handle can be mistaken for a live one.
    match peer_pidfd(sock.as_fd()) {
        Err(PidfdError::Exited) => {}
        Ok(late) => {
            let mut polled = [PollFd::new(&late, PollFlags::IN)];
            assert_eq!(poll(&mut polled, Some(&no_wait)).unwrap(), 1, "{}", late.as_raw_fd());
        }
        Err(other) => panic!("unexpected {other:?}"),
    }
}

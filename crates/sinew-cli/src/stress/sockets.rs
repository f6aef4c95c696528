//! The storms of `sinew stress io`: sockets whose peers are slow, deaf, gone, or cut short.
//!
//! What is checked of every byte is in `streams.rs`. Writers and readers that are cancelled, or late, are followed by others that go on where they stopped.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use sinew::net::unix::{UnixDatagram, UnixStream};
use sinew::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};

use super::failure::{check, fail};
use super::leaks;
use super::ledger::{Spawned, Wait};
use super::random::Random;
use super::storms::{Stage, Storm};
use super::streams::{
    BUFFER_BYTES, CANARY, End, Got, Patience, Pattern, RACE_US_MAX, Reader, TALLY, Writer, count, either, expected, pair,
};

pub(super) const STORMS: [Storm; 8] = [streams, races, relays, resets, deaf_peers, comers, packets, closers];

/// Bytes of a stream, at most: some times what the buffers of the system hold.
const STREAM_BYTES_MAX: usize = 300_000;
/// Races of one storm, at most; their time-outs, and the pauses between their bytes, go up to this.
const RACES_MAX: usize = 300;
const CLOSE_RACE_US_MAX: usize = 40;
/// Clients of one listener, and packets of one sender, at most.
const COMERS_MAX: usize = 150;
const PACKETS_MAX: usize = 200;

fn stream_bytes(random: &mut Random) -> u64 {
    if random.once_in(8) { 0 } else { random.between(1, STREAM_BYTES_MAX) as u64 }
}

/// Streams there, and after their end streams back: bytes out are bytes in, whatever cuts the calls short.
fn streams(stage: &Stage<'_>, random: &mut Random) {
    let mut fibers = Vec::new();
    for _ in 0..random.between(1, 4) {
        let (near, far) = pair(stage, random);
        let [there, back] = [(); 2].map(|()| (Pattern { key: random.next() }, stream_bytes(random)));
        fibers.push(stage.spawn("stream", random, move |stage, random| {
            Writer::new(&near, there.0, 0).finish(stage, random, there.1);
            Reader::new(&near, back.0, 0).read_to_end(stage, random, back.1);
        }));
        fibers.push(stage.spawn("stream back", random, move |stage, random| {
            Reader::new(&far, there.0, 0).read_to_end(stage, random, there.1);
            Writer::new(&far, back.0, 0).finish(stage, random, back.1);
        }));
    }
    stage.join_all(fibers, random);
}

/// Drops of a stream that come when the reader's time-out is over, or nearly: each is read once, by this read or the next.
fn races(stage: &Stage<'_>, random: &mut Random) {
    let (near, far) = pair(stage, random);
    let (pattern, total) = (Pattern { key: random.next() }, random.between(1, RACES_MAX) as u64);
    let writer = stage.spawn("racing writer", random, move |stage, random| {
        let mut writer = Writer::new(&near, pattern, 0);
        while writer.offset < total {
            match writer.write(stage, random, 1, Patience::Endless) {
                Got::Bytes(_) => stage.me.sleep(Duration::from_micros(random.between(0, CLOSE_RACE_US_MAX) as u64)),
                _ => fail(format_args!("a write of one byte failed at {} of {total}", writer.offset)),
            }
        }
        expected(near.shutdown(Shutdown::Write), "a half-close failed");
    });
    let mut reader = Reader::new(&far, pattern, 0);
    loop {
        let limit = Duration::from_micros(random.between(1, CLOSE_RACE_US_MAX) as u64);
        let patience = random.pick(&[Patience::Socket(limit), Patience::Deadline(limit)]);
        match reader.read_with(stage, random, patience) {
            Got::Bytes(0) => break,
            Got::Bytes(_) | Got::Late => {}
            _ => fail(format_args!("a read failed at {} of {total} bytes", reader.offset)),
        }
    }
    check!(reader.offset == total, "{} bytes were read, {total} were written", reader.offset);
    stage.join(writer);
}

/// One stream, written by one fiber after the other and read so: each is cancelled, and the next goes on where it stopped.
fn relays(stage: &Stage<'_>, random: &mut Random) {
    let (near, far) = pair(stage, random);
    let (pattern, total) = (Pattern { key: random.next() }, stream_bytes(random));
    let runners = random.between(1, 8);
    let writers = stage.spawn("relay", random, move |stage, random| {
        let mut offset = 0;
        for _ in 0..runners {
            let near = near.clone();
            offset = runner(stage, random, move |stage, random| {
                let mut writer = Writer::new(&near, pattern, offset);
                let got = writer.write_on(stage, random, total);
                check!(!matches!(got, Got::Broken(_)), "a write failed at {} of {total} bytes", writer.offset);
                writer.offset
            });
        }
        Writer::new(&near, pattern, offset).finish(stage, random, total);
    });
    let mut offset = 0;
    for _ in 0..runners {
        let far = far.clone();
        offset = runner(stage, random, move |stage, random| {
            let mut reader = Reader::new(&far, pattern, offset);
            let got = reader.read_on(stage, random);
            check!(!matches!(got, Got::Broken(_)), "a read failed at {} of {total} bytes", reader.offset);
            reader.offset
        });
    }
    Reader::new(&far, pattern, offset).read_to_end(stage, random, total);
    stage.join(writers);
}

/// A fiber that is cancelled after a while; what it gave.
fn runner<F>(stage: &Stage<'_>, random: &mut Random, run: F) -> u64
where
    F: FnOnce(&Stage<'_>, &mut Random) -> u64 + Send + 'static,
{
    let fiber = stage.spawn("runner", random, run);
    for _ in 0..random.between(0, 4) {
        stage.dawdle(random);
    }
    fiber.handle.cancel();
    stage.join(fiber)
}

/// Peers that read a little and are gone: who writes to them, and who waits to read from them, learns it.
fn resets(stage: &Stage<'_>, random: &mut Random) {
    let mut fibers = Vec::new();
    for _ in 0..random.between(1, 6) {
        let (near, far) = pair(stage, random);
        let (pattern, some) = (Pattern { key: random.next() }, random.between(0, 50_000) as u64);
        let waiting = near.clone();
        fibers.push(stage.spawn(
            "bereft reader",
            random,
            move |stage, random| match Reader::new(&waiting, pattern, 0).read_on(stage, random) {
                Got::Bytes(_) => {}
                Got::Broken(error) => check_break(&error),
                _ => fail(format_args!("a fiber that nobody cancelled is cancelled")),
            },
        ));
        fibers.push(stage.spawn("bereft writer", random, move |stage, random| {
            match Writer::new(&near, pattern, 0).write_on(stage, random, u64::MAX) {
                Got::Broken(error) => check_break(&error),
                _ => fail(format_args!("a write to nobody went on and on")),
            }
        }));
        fibers.push(stage.spawn("leaver", random, move |stage, random| {
            let mut reader = Reader::new(&far, pattern, 0);
            while reader.offset < some {
                let got = reader.read(stage, random);
                check!(!matches!(got, Got::Broken(_) | Got::Bytes(0)), "a stream broke that its writer still writes");
            }
            if random.once_in(2) {
                far.end_by_reset();
            }
        }));
    }
    stage.join_all(fibers, random);
}

/// What a peer that is gone may lead to.
fn check_break(error: &io::Error) {
    let is_break = matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
    check!(is_break, "a peer is gone, and the error is another: {error:?}");
    count(&TALLY.resets);
}

/// Peers that do not read: the writer gives up, by time-out, deadline or cancel. What was written until then, and nothing else, arrives when the peer reads at last.
fn deaf_peers(stage: &Stage<'_>, random: &mut Random) {
    for _ in 0..random.between(1, 3) {
        let (near, far) = pair(stage, random);
        let pattern = Pattern { key: random.next() };
        let is_cancelled = random.once_in(2);
        let writer = stage.spawn("writer to the deaf", random, move |stage, random| {
            let mut writer = Writer::new(&near, pattern, 0);
            let limit = Duration::from_micros(random.between(1, 2_000) as u64);
            let patience =
                if is_cancelled { Patience::Endless } else { random.pick(&[Patience::Socket(limit), Patience::Deadline(limit)]) };
            loop {
                match writer.write(stage, random, u64::MAX, patience) {
                    Got::Bytes(_) => {}
                    Got::Broken(error) => fail(format_args!("a write to a deaf peer failed: {error}")),
                    Got::Late | Got::Cancelled => break,
                }
            }
            expected(near.shutdown(Shutdown::Write), "a half-close failed");
            writer.offset
        });
        if is_cancelled {
            stage.me.sleep(Duration::from_micros(random.between(0, 3_000) as u64));
            writer.handle.cancel();
        }
        let written = stage.join(writer);
        Reader::new(&far, pattern, 0).read_to_end(stage, random, written);
    }
}

/// Clients that come and go, some in the midst of it, and acceptors that are cut short.
fn comers(stage: &Stage<'_>, random: &mut Random) {
    let listener = Arc::new(expected(TcpListener::bind("127.0.0.1:0"), "no listener"));
    let addr = expected(listener.local_addr(), "a listener has no address");
    let doors: Vec<_> = (0..random.between(1, 3))
        .map(|_| {
            let listener = listener.clone();
            stage.spawn("door", random, move |stage, random| keep_door(stage, random, &listener))
        })
        .collect();
    let clients: Vec<_> = (0..random.between(1, COMERS_MAX))
        .map(|_| stage.spawn("client", random, move |stage, random| visit(stage, random, addr)))
        .collect();
    for client in &clients {
        if random.once_in(20) {
            client.handle.cancel();
        }
    }
    stage.join_all(clients, random);
    doors.iter().for_each(|door| door.handle.cancel());
    stage.join_all(doors, random);
}

/// Accepts until it is cancelled, and serves in fibers that nobody joins.
fn keep_door(stage: &Stage<'_>, random: &mut Random, listener: &TcpListener) {
    loop {
        let limit = Duration::from_micros(random.between(1, RACE_US_MAX) as u64);
        let mut accepted = None;
        let is_cut = stage.me.away(Wait::Io, || match random.once_in(4) {
            true => sinew::timeout(limit, || accepted = Some(listener.accept())).is_err(),
            false => {
                accepted = Some(listener.accept());
                false
            }
        });
        match accepted.expect("it was tried") {
            Ok((stream, _)) => {
                check!(!is_cut, "a deadline cut an accept short that gave a connection");
                count(&TALLY.connections);
                leaks::plant(stage, random);
                drop(stage.spawn("host", random, move |stage, _| host(stage, &stream)));
            }
            Err(_) if sinew::cancelled() => return,
            Err(error) => check!(is_cut, "an accept failed: {error}"),
        }
    }
}

/// Sends back what comes, until there is no more, or nobody.
fn host(stage: &Stage<'_>, mut stream: &TcpStream) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let served = stage.me.away(Wait::Io, || match stream.read(&mut buffer)? {
            0 => Ok(0),
            read => stream.write_all(&buffer[..read]).map(|()| read),
        });
        match served {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => return check_break(&error),
        }
    }
}

/// One of the ways to visit a host. A visitor that is cancelled goes at once.
fn visit(stage: &Stage<'_>, random: &mut Random, addr: SocketAddr) {
    let limit = Duration::from_micros(random.between(1, 2_000) as u64);
    let hurries = random.once_in(8);
    let connected = stage.me.away(Wait::Io, || if hurries { TcpStream::connect_timeout(&addr, limit) } else { TcpStream::connect(addr) });
    let stream = match connected {
        Ok(stream) => End::Tcp(stream),
        Err(_) if sinew::cancelled() => return count(&TALLY.cancels),
        Err(error) if hurries && error.kind() == ErrorKind::TimedOut => return count(&TALLY.timeouts),
        Err(error) => fail(format_args!("a connect failed: {error}")),
    };
    let (pattern, bytes) = (Pattern { key: random.next() }, random.between(0, 5_000) as u64);
    match random.between(0, 3) {
        // Gone, before it was accepted maybe.
        0 => stream.end_by_reset(),
        1 => {}
        // Gone without having read the answer.
        2 => drop(Writer::new(&stream, pattern, 0).write_on(stage, random, bytes)),
        _ => {
            let mut writer = Writer::new(&stream, pattern, 0);
            if let Got::Broken(error) = writer.write_on(stage, random, bytes) {
                fail(format_args!("a write to a host failed: {error}"));
            }
            expected(stream.shutdown(Shutdown::Write), "a half-close failed");
            let mut reader = Reader::new(&stream, pattern, 0);
            match reader.read_on(stage, random) {
                Got::Cancelled => {}
                Got::Bytes(_) => check!(reader.offset == writer.offset, "{} of {} bytes came back", reader.offset, writer.offset),
                _ => fail(format_args!("a host broke off after {} of {} bytes", reader.offset, writer.offset)),
            }
        }
    }
}

/// Packets from many to many over one pair of sockets: each arrives once, or, by UDP, at most once; and for each receiver in the order of its sender.
fn packets(stage: &Stage<'_>, random: &mut Random) {
    let by_udp = random.once_in(2);
    let (near, far) = if by_udp { udp_pair() } else { datagram_pair() };
    let (senders, receivers, each) = (random.between(1, 6), random.between(1, 4), random.between(1, PACKETS_MAX) as u64);
    let receiving: Vec<_> = (0..receivers)
        .map(|_| {
            let far = far.clone();
            stage.spawn("packet receiver", random, move |stage, random| receive_packets(stage, random, &far))
        })
        .collect();
    let sending: Vec<_> = (0..senders as u64)
        .map(|sender| {
            let near = near.clone();
            stage.spawn("packet sender", random, move |stage, random| {
                for number in 0..each {
                    let packet = [sender.to_le_bytes(), number.to_le_bytes()].concat();
                    let sent = expected(stage.me.away(Wait::Io, || near.send(&packet)), "a packet could not be sent");
                    check!(sent == packet.len(), "{sent} bytes of a packet were sent");
                    stage.dawdle(random);
                }
            })
        })
        .collect();
    stage.join_all(sending, random);
    if by_udp {
        receiving.iter().for_each(|receiver| receiver.handle.cancel());
    } else {
        // One for each to end with.
        for _ in 0..receivers {
            expected(stage.me.away(Wait::Io, || near.send(&[0])), "a packet could not be sent");
        }
    }
    let mut all = BTreeSet::new();
    for packet in stage.join_all(receiving, random).into_iter().flatten() {
        check!(packet.0 < senders as u64 && packet.1 < each, "a packet that nobody sent: {packet:?}");
        check!(all.insert(packet), "a packet came twice: {packet:?}");
        count(&TALLY.packets);
    }
    let sent = senders as u64 * each;
    check!(by_udp || all.len() as u64 == sent, "{} of {sent} packets came", all.len());
}

/// Receives until it is cancelled, or gets the last packet.
fn receive_packets(stage: &Stage<'_>, random: &mut Random, socket: &Datagrams) -> Vec<(u64, u64)> {
    let mut packets: Vec<(u64, u64)> = Vec::new();
    loop {
        let mut packet = [CANARY; 32];
        let patience = if random.once_in(3) {
            Patience::Deadline(Duration::from_micros(random.between(1, RACE_US_MAX) as u64))
        } else {
            Patience::Endless
        };
        match patience.call(stage, || socket.receive(&mut packet)) {
            Got::Bytes(16) => {
                let [sender, number] = [&packet[..8], &packet[8..16]].map(|half| u64::from_le_bytes(half.try_into().expect("eight bytes")));
                let last = packets.iter().rev().find(|packet| packet.0 == sender);
                check!(last.is_none_or(|last| last.1 < number), "packet {number} of sender {sender} came after {last:?}");
                check!(packet[16..] == [CANARY; 16], "more was written than a packet has");
                packets.push((sender, number));
            }
            Got::Bytes(1) | Got::Cancelled => return packets,
            Got::Bytes(bytes) => fail(format_args!("a packet of {bytes} bytes, which nobody sent")),
            Got::Late => check!(packet == [CANARY; 32], "a receive that was cut short wrote"),
            Got::Broken(error) => fail(format_args!("a packet could not be received: {error}")),
        }
    }
}

/// A socket that packets are sent to, or come from.
enum Datagrams {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

impl Datagrams {
    fn send(&self, packet: &[u8]) -> io::Result<usize> {
        match self {
            Datagrams::Udp(socket) => socket.send(packet),
            Datagrams::Unix(socket) => socket.send(packet),
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Datagrams::Udp(socket) => socket.recv(buffer),
            Datagrams::Unix(socket) => socket.recv(buffer),
        }
    }
}

fn datagram_pair() -> (Arc<Datagrams>, Arc<Datagrams>) {
    let (near, far) = expected(UnixDatagram::pair(), "no pair of sockets");
    (Arc::new(Datagrams::Unix(near)), Arc::new(Datagrams::Unix(far)))
}

fn udp_pair() -> (Arc<Datagrams>, Arc<Datagrams>) {
    let bind = || expected(UdpSocket::bind("127.0.0.1:0"), "no socket");
    let (near, far) = (bind(), bind());
    let addr = |socket: &UdpSocket| expected(socket.local_addr(), "a socket has no address");
    expected(near.connect(addr(&far)), "a socket could not be connected");
    expected(far.connect(addr(&near)), "a socket could not be connected");
    (Arc::new(Datagrams::Udp(near)), Arc::new(Datagrams::Udp(far)))
}

/// Readers that wait at one end, several at once, while others close it, or the other: all find the end.
fn closers(stage: &Stage<'_>, random: &mut Random) {
    let (near, far) = pair(stage, random);
    let readers: Vec<Spawned<()>> = (0..random.between(1, 5))
        .map(|_| {
            let near = near.clone();
            stage.spawn("reader to be closed", random, move |stage, _| {
                let read = stage.me.away(Wait::Io, || either!(&*near, stream => { stream }.read(&mut [0])));
                check!(matches!(read, Ok(0)), "a read at a closed end gave {read:?}");
            })
        })
        .collect();
    stage.dawdle(random);
    match random.between(0, 2) {
        0 => expected(near.shutdown(Shutdown::Both), "a close failed"),
        1 => expected(far.shutdown(Shutdown::Write), "a half-close failed"),
        _ => drop(far),
    }
    stage.join_all(readers, random);
}

/// Reads where nothing ever comes, until the runtime is ended.
pub(super) fn read_for_ever(stage: &Stage<'_>) {
    let (near, _far) = expected(UnixStream::pair(), "no pair of sockets");
    let read = stage.me.away(Wait::Io, || { &near }.read(&mut [0]));
    check!(read.is_err() && sinew::cancelled(), "a read where nothing comes gave {read:?}");
}

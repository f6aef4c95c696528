//! The work on channels, for tasks that block.

use std::array;
use std::time::{Duration, Instant};

use super::Blocking;
use crate::deeds::{CHANNEL_PLACES, LAST_MESSAGE, PRODUCERS, SELECT_CHANNELS, SELECT_PLACES, SENT, paced, sum_below};
use crate::job::{Deed, Job, Reading};

/// A kind of channel for numbers.
pub(crate) trait Channel: 'static {
    type Sender: Clone + Send + 'static;
    type Receiver: Send + 'static;

    /// A channel of so many places; of any number if the system has no other kind.
    fn channel(places: usize) -> (Self::Sender, Self::Receiver);
    fn send(sender: &Self::Sender, message: u64);
    /// `None` when all senders are gone and nothing is left.
    fn receive(receiver: &Self::Receiver) -> Option<u64>;
}

/// The channels of one system. Tasks of another may use them.
pub(crate) trait Channels: 'static {
    /// With one consumer.
    type One: Channel;
    /// With several.
    type Many: Channel<Receiver: Clone>;

    /// Receives so many messages, each from whichever channel has one, and adds them up.
    fn select(receivers: [<Self::One as Channel>::Receiver; SELECT_CHANNELS], messages: usize) -> u64;
    /// Makes a channel for one message, sends it and receives it. By default it is one of one place.
    fn oneshot(message: u64) -> u64 {
        let (sender, receiver) = Self::One::channel(1);
        Self::One::send(&sender, message);
        Self::One::receive(&receiver).expect(SENT)
    }
}

/// Does `job` with the tasks of `T` and the channels of `C`.
pub(crate) fn perform<T: Blocking, C: Channels>(job: &Job) -> Vec<Reading> {
    let job = *job;
    T::run(&job, move || match job.deed {
        Deed::PingPong => ping_pong::<C::One>(&job, |echo| drop(T::spawn(echo))),
        Deed::PingPongApart => ping_pong::<C::One>(&job, T::spawn_apart),
        Deed::TwoToOne => paced(&job, PRODUCERS, |turns| stream::<T, C::One>(turns, |receiver| vec![receiver])),
        Deed::TwoToTwo => paced(&job, PRODUCERS, |turns| stream::<T, C::Many>(turns, |receiver| vec![receiver.clone(), receiver])),
        Deed::Select => paced(&job, SELECT_CHANNELS, select::<T, C>),
        Deed::Oneshot => paced(&job, 1, oneshot::<C>),
        other => panic!("{other:?} uses no channel"),
    })
}

/// One pair for all runs: where it is does not change between them.
fn ping_pong<C: Channel>(job: &Job, spawn: fn(Box<dyn FnOnce() + Send>)) -> Vec<Reading> {
    let (ping, pings) = C::channel(1);
    let (pong, pongs) = C::channel(1);
    spawn(Box::new(move || {
        while let Some(message) = C::receive(&pings) {
            C::send(&pong, message);
        }
    }));
    let readings = paced(job, 1, |turns| {
        let start = Instant::now();
        for turn in 0..turns as u64 {
            C::send(&ping, turn);
            assert_eq!(C::receive(&pongs), Some(turn), "the echo is wrong");
        }
        start.elapsed()
    });
    drop(ping);
    assert_eq!(C::receive(&pongs), None, "the echo has ended");
    readings
}

/// `share` says how many consumers there are.
fn stream<T: Blocking, C: Channel>(turns: usize, share: fn(C::Receiver) -> Vec<C::Receiver>) -> Duration {
    let (sender, receiver) = C::channel(CHANNEL_PLACES);
    let receivers = share(receiver);
    let start = Instant::now();
    let consume = |receiver| {
        T::spawn(move || {
            let mut sum = 0;
            while let Some(message) = C::receive(&receiver).filter(|&message| message != LAST_MESSAGE) {
                sum += message;
            }
            sum
        })
    };
    let consumers: Vec<_> = receivers.into_iter().map(consume).collect();
    let producers: [_; PRODUCERS] = array::from_fn(|_| produce::<T, C>(sender.clone(), turns));
    producers.into_iter().for_each(T::join);
    consumers.iter().for_each(|_| C::send(&sender, LAST_MESSAGE));
    let sum: u64 = consumers.into_iter().map(T::join).sum();
    let took = start.elapsed();
    assert_eq!(sum, PRODUCERS as u64 * sum_below(turns), "the messages were not all received once");
    took
}

fn produce<T: Blocking, C: Channel>(sender: C::Sender, turns: usize) -> T::Handle<()> {
    T::spawn(move || {
        for turn in 0..turns as u64 {
            C::send(&sender, turn);
        }
    })
}

fn select<T: Blocking, C: Channels>(turns: usize) -> Duration {
    let channels: [_; SELECT_CHANNELS] = array::from_fn(|_| C::One::channel(SELECT_PLACES));
    // They stay until the end: a channel without senders would always be ready.
    let senders = channels.each_ref().map(|(sender, _)| sender.clone());
    let receivers = channels.map(|(_, receiver)| receiver);
    let start = Instant::now();
    let producers = senders.each_ref().map(|sender| produce::<T, C::One>(sender.clone(), turns));
    let sum = C::select(receivers, SELECT_CHANNELS * turns);
    producers.into_iter().for_each(T::join);
    let took = start.elapsed();
    drop(senders);
    assert_eq!(sum, SELECT_CHANNELS as u64 * sum_below(turns), "the messages were not all received once");
    took
}

fn oneshot<C: Channels>(turns: usize) -> Duration {
    let start = Instant::now();
    for turn in 0..turns as u64 {
        assert_eq!(C::oneshot(turn), turn, "another message came");
    }
    start.elapsed()
}

"""Exercises with a number as the answer, by lesson: the number, its derivation, and mistakes with hints."""

from __future__ import annotations

from gluontune.course.exercises._registry import near, number

# fmt: off

# 02 and 03: workers, record files
number("workers-needed", 6, "-(-1100 // 200)",
    (5, "Five workers make 1,000 images/s: the device would still wait."),
    (near(5.5), "There are no halves of a worker; which whole number is enough?"),
    (lambda n: n > 6, "It would be fed, but with fewer as well; each worker takes a core and memory."),
    otherwise="Divide what the device takes by what one worker makes, and round up.", within=0)
number("step-serial", 130, "80 + 50",
    (80, "So long it is if loading and computing overlap; without workers they follow each other."),
    (50, "That is the computing alone; the device waits for its batch before."),
    (65, "A step needs both, one after the other: add, do not average."),
    otherwise="Without workers nothing happens at the same time.", within=0)
number("step-overlapped", 80, "max(80, 50)",
    (50, "The device would be done, but the next batch is not there yet."),
    (130, "That is without a worker; now both run at the same time."),
    (30, "So long the device waits in each step; how long is the whole step?"),
    otherwise="Both run at the same time, so the slower of them sets the pace.", within=0)
number("label-limit", 2**24, "2**24",
    (2**24 - 1, "One more: the next whole number is a power of two, and exact as well."),
    ((2**23, 2**23 - 1), "float32 stores 23 bits of the significand, and the leading one comes free."),
    ((2**31, 2**31 - 1, 2**32, 2**32 - 1),
     "So far an integer of 32 bits reaches; a float32 spends 8 of its bits on the exponent."),
    otherwise="Try it: int(np.float32(n)) == n holds for every n up to the answer, and fails for the next one.",
    within=0)
number("feed-rate", 256 / 0.025, "256 / 0.025",
    (40, "Those are batches a second; each of them holds 256 images."),
    (10.24, "That is images a millisecond; the question asks for a second."),
    ((256 * 25 / 1000, 256 * 25), "Divide the images by the time; you have multiplied."),
    otherwise="256 images every 25 ms: how many in 1000 ms?")

# 04 and 05: symbolic execution, number formats
number("arrays-imperative", 6, "6",
    (4, "Those are the results; a and b are arrays as well."),
    (3, "So few only a graph would hold; here each name keeps its array."),
    (1, "Only the last result would remain if you had used one name for all of them."),
    otherwise="Count the names that are still in use: each of them holds one array.", within=0)
number("arrays-symbolic", 3, "3",
    (6, "That is the imperative script; nobody asks the graph for c, d and e."),
    (1, "The inputs a and b are bound to it and held as well."),
    ((2, 4), "Each result may be written over the one before it, but not over an input, which is yours."),
    otherwise="Count the inputs, and the arrays that are needed at the same time for c, d, e and f.", within=0)
number("break-even", 200, "2000 / (50 - 40)",
    ((40, 50), "Divide by what a step saves, not by what it takes."),
    (0.2, "Compiling takes seconds and a step saves milliseconds: bring them to one unit."),
    (20, "A step saves 10 ms, and 2 s are 2,000 ms."),
    otherwise="Compiling costs 2 s once, and each step saves the difference of the two times.", within=0.006)
number("largest-float16", 65_504, "numbers.FORMATS['float16'].largest",
    ((65_535, 65_536), "That is an integer of 16 bits; the last step below 2**16 is 32 wide in float16."),
    (32_768, "That is the largest power of two; the significand can still grow to nearly two."),
    (lambda n: n > 1e38, "So far float32 and bfloat16 reach; float16 has five bits of exponent."),
    otherwise='Look at numbers.FORMATS["float16"], or at np.finfo(np.float16).', within=0)
number("next-bfloat16", 1 + 2**-7, "numbers.FORMATS['bfloat16'].next_after_one",
    (2**-7, "That is the distance; add it to 1."),
    (1 + 2**-10, "That is float16, with ten bits of significand."),
    (1 + 2**-8, "The leading one comes free, but seven bits remain after it, not eight."),
    otherwise="bfloat16 stores seven bits of the significand: the last of them is worth 2**-7 beside a 1.", within=0)
number("loss-scale", 2**16, "2**16",
    (16, "That is the exponent; the scale is 2 to its power."),
    (2**6, "That lifts it to the smallest number at all, with one digit left; normal ones begin at 2**-14."),
    (lambda n: n > 2**16, "It works, but a smaller power of two does as well."),
    otherwise="Normal numbers begin at 2**-14, about 6.1e-5: which power of two lifts 1e-9 above that?", within=0)

# 06, 09, 10 and 11: batch size, optimizers, schedules
number("linear-rule", 0.4, "0.1 * 1024 / 256",
    (0.2, "That is the square-root rule; the linear one multiplies the rate as the batch."),
    (0.025, "The rate grows with the batch: each of the fewer steps must go further."),
    (0.1, "That leaves the rate as it is, for a quarter of the steps."),
    otherwise="The batch is four times as large; so is the rate.")
number("noise-share", 0.25, "(64 / 1024) ** 0.5",
    (1 / 16, "So the variance falls; the noise itself is its root."),
    (4, "Noise falls: turn the fraction over."),
    (25, "Those are percent; give the share, between 0 and 1."),
    otherwise="The mean over n images scatters like one over the root of n, and n is 16 times as large.")
number("large-batch-updates", 1500, "30 * 50_000 // 1000",
    (50, "That is one epoch; there are 30."),
    (1_500_000, "Those are the images that are looked at; a batch of them makes one update."),
    (30_000, "Divide the images by the batch; the batch size itself does not count updates."),
    otherwise="Updates of an epoch: 50,000 / 1,000. Then 30 epochs.", within=0)
number("updates-per-epoch", 200, "10_000 // 50",
    (10_000, "That is stochastic descent, an update for each image; here 50 images share one."),
    (1, "That is full descent, one update for all images."),
    (500_000, "Divide the images by the batch; you have multiplied."),
    otherwise="Each update looks at one batch, and an epoch at every image once.", within=0)
number("momentum-step", 1.0, "0.1 / (1 - 0.9)",
    (0.1, "That is the first step; momentum adds 0.9 times the step before it to each one."),
    (0.19, "That is the second step; add further ones until they no longer grow."),
    (10, "So many times the plain step it becomes; multiply by the rate."),
    otherwise="In the end a step v keeps its length: v = 0.9 · v + 0.1 · 1. Solve for v.")
number("adam-first-step", 0.003, "0.003",
    ((0.000003, 3e-7, 3e-6), "The gradient's size drops out: m̂ = g and √v̂ = |g|."),
    (0.001, "That is the gradient; m̂ / √v̂ is 1 at first, whatever the gradient."),
    (0.0003, "m is 0.1 g at first, but m̂ divides by 1 − 0.9."),
    otherwise="Put t = 1 into the table: m̂ = g and v̂ = g², so m̂ / √v̂ is 1. What is left is the rate.")
number("optimizer-memory", 200, "2 * 25 * 4",
    (100, "That is one array; Adam remembers m and v."),
    (200e6, "Right, but in bytes; the question asks for million bytes."),
    ((50, 25), "Those are numbers; each float32 has four bytes."),
    ((300, 400), "The weights and the gradients are there without Adam as well."),
    otherwise="How many arrays does Adam's row remember, and how many bytes has each?", within=0.01)
number("multifactor-rate", 0.25, "multifactor(900)",
    (0.125, "A step takes effect once num_update exceeds it: which rate has update 900 itself?"),
    (0.5, "That is the rate between the updates 250 and 750; one more step has passed."),
    (1, "Two steps have passed by then, and each one halves the rate."),
    otherwise="Count the steps that lie below update 900; each one halves the rate of 1.", within=0)
number("step-update", 60 * (50_000 // 128) / 2, "60 * (50_000 // 128) / 2",
    (30, "That is the epoch; schedules count updates, one for each batch."),
    (60 * (50_000 // 128), "That is the whole run; the rate shall fall after half of it."),
    (near(60 * 50_000 / 128 / 2, 0.004),
     "Incomplete batches are left out, so an epoch has a whole number of updates: round down first."),
    otherwise="Updates of an epoch: images divided by the batch, rounded down. Then half of 60 epochs.", within=0)

# 07 and 08: several devices
number("efficiency", 100 * 50_000 / 68_000, "100 * 50_000 / (4 * 17_000)",
    (4 * 50_000 / 68_000, "That is the gain; the efficiency is the gain for each device, in percent."),
    (50_000 / 68_000, "That is a share of 1; the question asks for percent."),
    (400 * 50_000 / 68_000, "That is the gain in percent; share it among the four devices."),
    ((34, 136), "Turn the fraction over: what was reached, divided by what four times one would be."),
    otherwise="Divide what the four reached by four times what one reaches.", within=0.01)
number("ring-bytes", 150, "2 * (4 - 1) / 4 * 25 * 4",
    (150e6, "Right, but in bytes; the question asks for million bytes."),
    (100, "That is the gradient itself; a rank of a ring sends 2 (n − 1) / n of it."),
    (75, "That is half of the way: the sums go round once, and then the results do."),
    (37.5, "Those are the numbers; each float32 has four bytes."),
    (600, "That is what all four send together; the question is about each of them."),
    (200, "So much goes to a server and back; the ring saves one part in n."),
    otherwise="The gradient has 4 · 25 million bytes. In n pieces, each rank sends n − 1 pieces, twice.", within=0.01)
number("exchange-share", 100 / 7, "100 * 10 / (2 * 30 + 10)",
    (1 / 7, "Right as a share; the question asks for percent."),
    (25, "That is its share now; twice the batch is twice the work."),
    (12.5, "The exchange is not twice as long: only the 30 ms of work are."),
    (100 / 6, "The step is the work and the exchange together."),
    otherwise="30 ms are work. Twice the batch doubles them, and the exchange stays at 10 ms.", within=0.01)

# 12: composing factors, and what they cost
number("measured-promised", 0.75, "4.5 / (2 * 3)",
    (4.5 / 5, "Gains multiply, they are not added: 2 times as fast, and that 3 times."),
    (6, "That is the promise itself; which share of it was measured?"),
    (6 / 4.5, "Turn the fraction over: above 1 would say that they give more than promised."),
    ((4.5 / 3, 4.5 / 2), "Divide by what both of them promise together, not by one of the two."),
    otherwise="The promise is the product of the gains alone; divide 4.5 by it.", within=0.01)
number("left-out", 0.8, "8 / 10",
    (1.25, "Turn the fraction over: with the batch it is slower, so the batch brings less than 1."),
    ((2, -2), "Gains are ratios: give the ratio, not the difference."),
    (8, "That is the gain of all of them over the base; what is the batch's own part in it?"),
    (10, "That is the gain without the batch; compare the gain with it."),
    otherwise="The gain with the batch, divided by the gain without it.", within=0.01)
number("cost-of-four", 4, "4 * 3 * 20 / 60",
    (1, "So much one device costs for 20 minutes; there are four."),
    (12, "That is the whole hour; they are done after 20 minutes."),
    (3, "That is the single device: three times as fast on four times the devices is not the same price."),
    otherwise="Four devices, 3 dollars an hour each, for a third of an hour.", within=0.01)

# 13: latency, throughput
number("batch-wait", 1000 * 128 / 163.52, "1000 * 128 / 163.52",
    (128 / 163.52, "Those are seconds; the question asks for milliseconds."),
    (1000 / 163.52, "That is the share of one image; but no image is answered before its batch is."),
    (13.04, "That is one image by itself; here 128 are on their way together."),
    (128 * 13.04, "So long 128 images take one by one; in a batch they are faster."),
    otherwise="128 images at 163.52 images a second: how many seconds, and how many milliseconds is that?", within=0.01)
number("tail-latency", 50, "50",
    (4, "That is p50, and p98 as well: 985 of 1,000 keep it, and p99 asks for 990."),
    (near((985 * 4 + 15 * 50) / 1000),
     "That is the mean, which no request ever took; a percentile is one of the times."),
    ((990, 985, 99), "That is a place in the sorted times; which time stands there?"),
    (lambda ms: 4 < ms < 50, "No request took that long: there are only answers of 4 and of 50 ms."),
    otherwise="Sort the times. The 990th of 1,000 is the one that 99 % keep.", within=0)

# 14: the assessment; 15: two engines
number("rank-steps", 93, "12_000 // 2 // 64",
    (187, "Each rank has only half of the images."),
    (94, "Whole steps: what is left over makes no batch."),
    (near(93.75, 0.001), "Whole steps: what is left over makes no batch."),
    (186, "The ranks take their steps together: an epoch has as many as one of them takes."),
    otherwise="One rank has 12,000 / 2 images, and each step takes 64 of them.", within=0)
number("lucky-styles", 1.2, "12 * 0.1",
    (0.1, "That is the chance of one style; there are 12."),
    (10, "Those are percent; the question asks for a number of styles."),
    otherwise="Each of the 12 styles is guessed right once in 10 times.")
number("variance-ratio", 16 / 15, "16 / 15",
    (near(15 / 16, 0.001), "Turn the fraction over: who divides by less keeps more."),
    (near(17 / 16, 0.001), "PyTorch divides by one less than the number of values, not MXNet by one more."),
    (1, "Nearly, with many values; with 16 the difference can be seen."),
    otherwise="MXNet divides the squares by 16, PyTorch by 15.", within=0.001)
number("migration-weeks", 1.5, "30 / (60 - 60 / 1.5)",
    (0.75, "40 hours are what a week takes afterwards; how many are saved?"),
    ((1, 0.5), "1.5 times as fast does not save half of the time: 60 hours become 60 / 1.5."),
    (20, "So many hours are saved each week; after how many weeks are they 30?"),
    otherwise="60 hours a week become 60 / 1.5 = 40. How often must the difference be saved to make 30?", within=0.01)

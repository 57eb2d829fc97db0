#!/usr/bin/env python3
"""Generates the starter stories: simple English from a seeded grammar, all different.

    starter.py --seed 1 --stories 7800 --out FILE           stories, separated by lines <|endoftext|>
    starter.py --seed 3 --stories 4000 --recall --out FILE  a recall test for eval --task

A story combines a theme (bakery, sea, …) with a plot (trouble, lost, skill, …). A plot is a list of beats; each
beat has a table of sentences. A story ends with questions about facts stated earlier (name, village, food, pet,
favourite thing, colour). It has one value of each kind of fact, and no theme uses words of the fact tables, so the
text determines every answer. A small ToST model relies more on which words occurred before than on the previous
word, so words with many continuations ("the", "was") are rare, and questions repeat the wording of the fact.

Template syntax: [a|b] is one of the alternatives; {slot} is a value of the story; <{slot}> is also an answer in the
recall test.

The recall test has one item per answer, for eval --task: "context" is the story up to the answer, "choices" the
answer and three values of the same kind that are not in the story, "answer" the index of the answer. Extra fields are
"kind" and "distance", the number of words back to the last occurrence of the answer. Chance is 1 in 4.
Two kinds of fact are left out because the story contains other clues: a pet's behaviour reveals the animal, and the
theme reveals the helper.

    starter.py --seed 3 --stories 4000 --recall --out recall.jsonl
    train_gpt_tost --membership learned --out out/learned ; train_gpt_tost --membership uniform --out out/uniform
    train_gpt_tost eval --model out/learned --task recall.jsonl --json learned.json     (and uniform)
"""
import argparse
import json
import random
import re
import string

EOT = "<|endoftext|>"


def split(table):
    """The alternatives of "a|b|c"; bars inside [..] do not separate."""
    return re.split(r"\|(?![^\[]*\])", table)


def read_table(text):
    """{key: alternatives} of lines "key: a|b"; a line that begins with a bar continues the one before."""
    rows = (line.split(": ", 1) for line in re.sub(r"\n +\|", "|", text.strip()).split("\n"))
    return {key: split(table) for key, table in rows}


def read_theme(paragraph):
    """(name, {key: [parts of each field with this key]}) of "name = key: part|part; key: part|part"."""
    name, fields = " ".join(paragraph.split()).split(" = ")
    theme = {}
    for field in fields.split("; "):
        key, table = field.split(": ", 1)
        theme.setdefault(key, []).append(split(table))
    return name, theme


# ----------------------------------------------------------------------------------------------------------
# Facts: a story has one value of each kind. No theme uses these words.

GIRLS = ("Mira|Anna|Lily|Rosa|Clara|Nora|Ella|Maya|Ruby|Zoe|Ivy|Hazel|Alice|Emma|Grace|Lucy|Nina|Tess|Wren|Freya|"
         "Elsa|Leila|Amina|Priya|Yuki|Carmen|Sofia|Hana|Greta|Molly|Tara|Vera")
BOYS = ("Tom|Ben|Leo|Max|Sam|Oscar|Hugo|Felix|Jack|Henry|Noah|Finn|Owen|Theo|Luca|Milo|Arthur|Jonas|Karl|Omar|Ravi|"
        "Kenji|Pablo|Ivan|Nils|Amir|Diego|Otto|Peter|Simon|Toby|Paul")
VILLAGES = ("Ashford|Oakham|Elmwood|Thornbury|Larkhill|Fernley|Millbrook|Westbridge|Stonewell|Hollowdale|Kingsmere|"
            "Foxton|Maplewick|Greenhaven|Rosedale|Winterby")
FOODS = ("porridge|pancakes|toast|noodles|soup|jelly|walnuts|raisins|sausages|yoghurt|rice|pizza|strawberries|"
         "bananas|chocolate|popcorn")
HUES = "red|blue|green|yellow|purple|pink|brown|grey|black|white|orange|crimson|silver|scarlet|violet|turquoise"
THINGS = ("kite|scarf|cap|marble|button|ribbon|umbrella|blanket|notebook|feather|purse|satchel|cloak|jumper|puppet|"
          "doll|robot|balloon|flag|mask|torch|brooch|bracelet|mitten|cushion|compass|locket|teapot|lantern|ball|"
          "pebble|shawl")
# What a pet does when alarmed, and when happy
PETS = {"dog": ("barked", "wagged its tail"), "puppy": ("yapped", "chased its tail"),
        "cat": ("miaowed", "arched its back"), "kitten": ("mewed", "rolled on its back"),
        "parrot": ("squawked", "spread its wings"), "duck": ("quacked", "waddled in circles"),
        "hen": ("clucked", "flapped its wings"), "goose": ("honked", "stretched its neck"),
        "lamb": ("bleated", "kicked up its heels"), "piglet": ("squealed", "twirled its tail"),
        "rabbit": ("thumped", "wiggled its ears"), "hedgehog": ("snuffled", "trotted in circles"),
        "ferret": ("chattered", "danced sideways"), "hamster": ("squeaked", "ran in circles"),
        "canary": ("chirped", "hopped up and down"), "monkey": ("screeched", "clapped its hands")}
CALLS = ("Biscuit|Pepper|Pickle|Socks|Ginger|Patch|Bramble|Nutmeg|Waffles|Domino|Scout|Rusty|Pippin|Mango|Truffle|"
         "Sparky|Cocoa|Tinker|Bubbles|Dumpling|Whiskers|Captain|Clover|Rocket")
KIN = "grandmother|mother|aunt|sister|grandfather|father|uncle|brother"
TRAITS = "curious|brave|quiet|cheerful|clever|gentle|shy|lively|patient|stubborn|merry|careful|dreamy|polite"

# ----------------------------------------------------------------------------------------------------------
# Plots: beats in order; "/" starts a paragraph; a beat marked "?" is omitted with probability 1/2.

PLOTS = read_table("""
trouble: open love pet food? / day sight work? / problem upset try again? / help advice fix / thanks moral / ask
lost: open love pet food? / day sight work / lost upset search also? / found relief / bedtime moral / ask
skill: open love pet food? / day sight / want teach fail keep able / pride bedtime? moral / ask
gift: open pet love food? / day sight? / idea steps wrap / give joy moral / ask
friend: open pet love food? / day sight work? / alone speak lend together / friends moral / ask
noise: open love pet food? / day sight? work / sound scared creep / creature free thrill? / bedtime moral / ask
fair: open pet love food? / day sight? / event task luck moment cheer / prize thrill? moral / ask
""")
PLOT_CHOICES = [*PLOTS, "trouble"]         # twice as likely, since each theme has two troubles

LINES = read_table("""
open: Long ago in {village} lived {trait} {hero}.|Once upon a time in {village} lived {trait} {hero}.
    |Many years ago in {village} lived {trait} {hero}.
love: {He} loved {his} {hue} {thing}.|Most of all {he} loved {his} {hue} {thing}.
pet: {He} had a {pet} called {call}.|{His} best friend {call} was a {pet}.
food: {He} ate {food} for breakfast.|Every morning {he} ate {food}.
day: {when}, {hero} went {to} with {call}.|{when}, {hero} and {call} went {to}.
work: Happily {he} {work} and {work2}.|While {call} watched, {he} {work}.
problem: Suddenly {problem}.|But then {problem}.
upset: "Oh no!" cried {hero}.|"Oh dear!" sighed {hero}.|Poor {hero} felt [worried|sad|puzzled].
try: First {he} {try}, but nothing changed.
again: Next {he} {again}, but that failed.
help: Luckily the {helper} came by.|Just then the {helper} came by.|"May I help?" asked the {helper}.
advice: "{advice}," said the {person}.
fix: It worked! Soon {fix}.
thanks: "Thank you!" said {hero}.|{hero} laughed, and {call} {petjoy}.
lost: Suddenly {his} {hue} {thing} vanished.|But then {his} {hue} {thing} vanished.
search: {hero} searched {spot} without luck.
also: {hero} peered {spot2} without success.
found: Then {call} {petcry} loudly, for {spot3} lay the {thing}.|At last clever {call} found the {thing} {spot3}.
relief: {hero} hugged {call}, and {call} {petjoy}.|"Good {pet}!" laughed {hero}.
bedtime: That night {hero} dreamed of {his} {hue} {thing}.|Back home {call} slept on {his} bed.
want: {hero} wished {he} could {skill}.
teach: "Watch me," said the {person}.|"Try this way," said the {person}.
fail: At first {fail}.
keep: But {hero} practised every day.|"Never give up," said the {person}.
able: Finally {he} could {skill}.
pride: "Well done!" cried the {person}.|{His} {kin} clapped proudly.
idea: {hero} made some {gift} for {his} {guest}.
steps: First {he} {step}. Then {he} {step2}.
wrap: Lastly {he} wrapped everything in [soft|shiny|thin] paper.
give: "This is for you," said {hero}.
joy: {His} {guest} smiled with joy.|{His} {guest} hugged {him} tightly.
alone: Lonely {friend} sat {spot}.
speak: "Please join us," said {hero}.|"Come and play," said {hero}.
lend: Kindly {hero} lent {friend} {his} {hue} {thing}.
together: Together they {work} and {work2}.|For hours they {work}.
friends: From then on {hero} and {friend} were best friends.
sound: All at once {he} heard {sound} {spot}.
scared: "Who is there?" whispered {hero}.|{call} {petcry} and hid behind {hero}.
creep: Slowly {hero} crept closer.|On tiptoe {hero} crept closer.
creature: Out peeped one [little|tiny] {creature}. {state}.
free: Gently {hero} {cure}.
event: Everyone had come for the {event}.
task: "Who can {task}?" asked the {person}.
luck: For luck {hero} held {his} {hue} {thing} tightly.
moment: {moment}.
cheer: "Hurrah for {hero}!" shouted the {person}.|"Hurrah for {hero}!" shouted {his} {kin}.
prize: {hero} won first prize.|{hero} won second prize.|{hero} came last but still smiled.
thrill: {call} {petjoy}.
""")
MORALS = read_table("""
trouble: Every problem has an answer.|Good helpers are worth more than gold.
lost: Loyal friends are true treasure.|Keep your eyes wide open.
skill: Practice makes perfect.|Step by step, hard things become easy.
gift: Giving beats getting.|Presents made by hand are never forgotten.
friend: Sharing doubles our joy.|Smiles make new friends.
noise: Scary things are often small.|Even tiny creatures deserve kindness.
fair: Joining in matters most.|Courage brings its own reward.
""")

# Questions with their answers. A question is asked only if the story has used all of its slots.
ASKS = [
    "What did {he} love most? {He} loved {his} <{hue}> <{thing}>.",
    "What colour was the {thing}? The {thing} was <{hue}>.",
    "What pet did {he} have? {He} had a <{pet}> called <{call}>.",
    "Where did {he} live? {He} lived in <{village}>.",
    "What did {he} eat? {He} ate <{food}>.",
    "Who lived in {village}? In {village} lived <{hero}>.",
    "Who helped {him}? The <{helper}> helped {him}.",
    "Who became friends? {hero} and <{friend}> became friends.",
    "Who got some {gift}? {His} <{guest}> got some {gift}.",
    "What made that noise? One {creature} made that noise.",
]

# ----------------------------------------------------------------------------------------------------------
# Themes. when, to, spot, work: choices separated by "|". sight: whole sentences. trouble: the problem, two failed
# attempts, advice, result. skill: what to learn, how it fails. gift: a present, two steps of making it.
# noise: a sound, the creature that makes it, its trouble, the cure. fair: contest, task, highlight.

THEMES = dict(read_theme(paragraph) for paragraph in """
bakery = when: one chilly morning|early one Monday; to: to the bakery; person: baker; spot: behind flour sacks|under
bread shelves|between cake tins; work: kneaded soft dough|sifted flour|iced ginger biscuits|whisked eggs and cream;
sight: Everything smelled of [cinnamon|bread|butter].|Warm loaves cooled beside hot ovens.|Sweet pastries filled the
window.; trouble: the dough went lumpy|stirred in more yeast|sang to it|Warm it near hot ovens|soft dough rose like
clouds; trouble: the oven went cold|blew on ashes|burned damp twigs|Burn dry birch bark|hot ovens glowed and crisp
buns baked; skill: plait loaves|floppy loaves fell apart; gift: oat biscuits|rolled oats in honey|baked crunchy
biscuits; gift: plum buns|washed ripe plums|kneaded soft dough; noise: scratching|mouse|Jam stuck its tail fast|washed
its tail, and it ran off; fair: pie contest|bake tall cherry pies|Higher and higher rose golden pie crusts

sea = when: one breezy morning|one salty summer day; to: to the harbour; person: fisherman; spot: behind crab
pots|under fishing nets|between slippery rocks; work: gathered shells|paddled in salty waves|skimmed stones|mended
fishing nets; sight: Gulls [circled|screamed] above tall masts.|Foamy waves rolled ashore.|Crabs scuttled through rock
pools.; trouble: the rowing boat drifted away|threw ropes|shouted at passing ships|Wait until high tide|high tide
carried it back; trouble: the fishing net tore|tied it with seaweed|patched it with sailcloth|Knot all corners
first|it came up full of herring; skill: row boats|clumsy oars splashed everywhere; gift: shell jewellery|gathered
tiny shells|threaded shells on fishing line; gift: driftwood ships|sanded driftwood smooth|sewed canvas sails; noise:
flapping|seal|Fishing nets tangled its flippers|cut the nets, and it dived into salty waves; fair: boat race|sail
round buoys|Strong gusts filled canvas sails

forest = when: one autumn day|one mossy spring morning; to: to the forest; person: forester; spot: behind hollow
trunks|under tall ferns|between pine roots; work: picked wild mushrooms|built dens of branches|gathered
acorns|followed deer tracks; sight: Sunlight fell through leafy branches.|Deer stepped silently between mossy
trunks.|Woodpeckers hammered on hollow trunks.; trouble: the path vanished|climbed beech trees|followed fox
tracks|Walk beside running brooks|running brooks led them home; trouble: the nest slipped down|propped it up with
sticks|tied it with ivy|Weave fresh twigs round it|it sat firmly on mossy branches; skill: read animal tracks|fox
tracks ended in brambles; gift: ivy wreaths|cut long strands|wove ivy with pine cones; gift: walking sticks|chose
straight hazel branches|carved fox heads; noise: rustling|badger|Roots trapped its paw|lifted the roots, and it
trotted off; fair: mushroom hunt|find giant mushrooms|Deep in mossy hollows stood giant mushrooms

school = when: one Tuesday morning|on the first day of term; to: to school; person: teacher; spot: under school
desks|behind paper stars|between coat pegs; work: practised long sums|drew dinosaurs with crayons|wrote funny
poems|glued paper stars; sight: Chalk squeaked across blackboards.|Paper dinosaurs hung above school desks.|Pupils
swapped stickers and giggled.; trouble: the stage curtain jammed|tugged harder|climbed onto desks|Rub soap along it|it
slid open and everyone clapped; trouble: the long sum went wrong|counted on ten fingers|guessed blindly|Split it into
small parts|all numbers added up; skill: spell caterpillar|all letters came out muddled; gift: clay pots|rolled clay
into coils|pressed paper stars into clay; gift: funny poems|wrote ten lines|coloured letters with crayons; noise:
tapping|beetle|Glue stuck its legs fast|rubbed off the glue, and it crawled away; fair: spelling contest|spell long
words|Every letter of rhinoceros came right

farm = when: one muddy morning|at harvest time; to: to the farm; person: farmer; spot: behind haystacks|under hay
carts|between milk pails; work: milked gentle cows|raked hay|swept dusty stables|fed woolly sheep; sight: Lazy cows
chewed sweet clover.|Noisy tractors rumbled over muddy fields.|Proud roosters crowed at sunrise.; trouble: the sheep
escaped|chased woolly sheep|waved both arms|Rattle some oats|woolly sheep trotted home; trouble: the calf refused
milk|held out full pails|mooed like cows|Dip your fingers in milk|it slurped until all pails stood empty; skill: drive
tractors|noisy tractors rolled into haystacks; gift: creamy cheese|stirred warm curds|pressed curds in cloth; gift:
woolly gloves|washed sheep wool|spun wool into yarn; noise: bleating|goat|Wire held its horns|bent the wire, and it
trotted off; fair: farm show|lead lazy cows|Sweet clover coaxed lazy cows along

winter = when: one frosty morning|one snowy afternoon; to: to the snowy park; person: postman; spot: behind
snowmen|under snowy firs|between snowdrifts; work: rolled giant snowballs|slid across slippery ice|caught
snowflakes|fed hungry robins; sight: Icicles hung from snowy firs.|Snow crunched under thick boots.|Snowflakes
[whirled|drifted] through frosty air.; trouble: the sledge got stuck|pulled thick ropes|dug with both hands|Lay
branches under it|it shot downhill; trouble: the snowman lost its head|pressed it down|propped it with shovels|Push
sticks through it|it stood up straight; skill: skate on ice|both skates slid away; gift: snow globes|glued tiny firs
into jars|added glitter for snowflakes; gift: warm slippers|wound thick wool|knitted beside icy windows; noise:
cheeping|robin|Frost stiffened its wings|warmed its wings, and it flew away; fair: sledge race|reach home first|Over
slippery ice whizzed fast sledges

market = when: one busy Saturday|on market day; to: to the market; person: grocer; spot: behind fruit stalls|under
cheese counters|between apple crates; work: weighed potatoes and onions|polished apples|stacked melon crates|counted
coins; sight: Traders shouted their prices.|Piles of [peppers|lemons|grapes] shone in sunlight.|Everything smelled of
[cumin|cloves|saffron].; trouble: the apple crates tipped over|chased rolling apples|stacked bruised apples|Ask
shoppers for help|smiling shoppers brought apples back; trouble: nobody bought cheese|shouted lower prices|painted
large signs|Let shoppers taste some slices|hungry shoppers bought every slice; skill: juggle lemons|bouncing lemons
landed in olives; gift: fruit salad|chose juicy grapes|mixed grapes with figs; gift: onion chutney|chopped onions and
apples|simmered onions with spice; noise: rattling|lizard|Heavy crates pinned its tail|lifted the crates, and it
darted off; fair: pumpkin weighing|guess heavy weights|Old scales creaked under heavy pumpkins

stars = when: one clear night|one moonlit evening; to: to the observatory; person: astronomer; spot: behind
telescopes|under star charts|between moon maps; work: counted meteors|drew moon craters|turned heavy telescopes|named
constellations; sight: Silvery moonlight filled that dome.|Countless stars twinkled overhead.|Comets glittered past
Jupiter.; trouble: the moon vanished behind clouds|stared at thick clouds|blew upwards|Wait for northern
winds|northern winds parted thick clouds; trouble: the telescope showed only fog|twisted small knobs|shook it|Wipe it
with silk|rings of Saturn appeared; skill: find constellations|all stars seemed alike; gift: star maps|dotted stars on
dark paper|joined stars into constellations; gift: paper planets|moulded round planets|fixed rings of wire; noise:
fluttering|bat|Bright lamps blinded its eyes|dimmed the lamps, and it flew away; fair: comet watch|spot bright
comets|Past Jupiter swept bright comets

music = when: one Sunday afternoon|on concert day; to: to the concert hall; person: conductor; spot: behind
drums|under grand pianos|between music stands; work: tuned violins|tapped deep drums|hummed slow melodies|played loud
trumpets; sight: Loud trumpets gleamed on stage.|Big choirs sang [slow|jolly] melodies.|Deep cellos murmured
[sweet|slow] notes.; trouble: the violin string snapped|knotted it|played without it|Borrow viola strings|sweet notes
rang out; trouble: the band lost its rhythm|played louder|counted aloud|Follow deep drums|deep drums led everyone
along; skill: play bamboo flutes|bamboo flutes only hissed; gift: gentle lullabies|hummed slow melodies|wrote down
notes; gift: bamboo flutes|cut thick bamboo|drilled six holes; noise: croaking|toad|Violin strings tangled its
feet|untied the strings, and it hopped off; fair: talent show|perform jolly melodies|Loud trumpets played jolly
melodies

garden = when: one dewy morning|one warm day in May; to: to the garden; person: gardener; spot: behind rose
bushes|under rhubarb leaves|between bean poles; work: watered tomatoes|pulled up weeds|planted sunflower seeds|pruned
roses; sight: Busy bees hummed among lavender.|Butterflies danced above tulips.|Dew sparkled on rose petals.; trouble:
the slugs nibbled lettuces|picked off fat slugs|built twig fences|Scatter broken eggshells|fat slugs crawled away;
trouble: the pumpkin plant wilted|propped up its stalk|poured more water|Give it shade at noon|it grew plump pumpkins;
skill: grow sunflowers|weak seedlings drooped in rain; gift: lavender soap|picked lavender at dawn|stirred lavender
into oil; gift: rose jam|gathered rose petals|boiled petals with lemon; noise: humming|bumblebee|Dew weighed its wings
down|dried its wings, and it buzzed off; fair: flower show|grow tall sunflowers|Taller and taller stretched golden
sunflowers

city = when: one crowded Thursday|one hot afternoon; to: to the city; person: driver; spot: behind newspaper
stands|under bridges|between parked taxis; work: rode trams|waved at taxis|counted skyscrapers|chased pigeons round
fountains; sight: Impatient taxis hooted at traffic lights.|Skyscrapers of glass reached into clouds.|Trams rattled
along wide avenues.; trouble: the tram took wrong turns|read street signs|rang its bell|Take tram number nine|tram
number nine reached home; trouble: the lift stopped halfway|pressed every knob|knocked on its doors|Pull that brass
lever|it glided down safely; skill: ride skateboards|fast skateboards rolled away; gift: photo albums|took photos of
skyscrapers|stuck photos on thick pages; gift: cardboard trams|cut tiny windows|glued on roofs of foil; noise:
cooing|pigeon|String bound its feet|untied the string, and it soared away; fair: street parade|march past
skyscrapers|Bright confetti rained past skyscrapers

mountain = when: one crisp morning|at sunrise; to: to the mountains; person: guide; spot: behind waterfalls|under
stone arches|between boulders; work: climbed steep slopes|picked wild thyme|listened for echoes|watched eagles; sight:
Eagles glided over deep valleys.|Distant summits glistened with ice.|Marmots called from rocky slopes.; trouble: the
trail vanished in mist|shouted for echoes|crept along steep cliffs|Stay close by stone cairns|stone cairns led them
safely down; trouble: the rope bridge broke|tried jumping|laid down branches|Tie firm double knots|firm double knots
held it high; skill: yodel|loud echoes sounded like rusty hinges; gift: crystal beads|dug crystals from cliffs|rubbed
crystals until dusk; gift: mountain tea|picked wild thyme and mint|dried leaves on stones; noise:
piping|marmot|Boulders blocked its burrow|rolled away the boulders, and it slipped inside; fair: summit climb|climb
icy slopes|Near icy slopes gleamed distant summits
""".strip().split("\n\n"))

# ----------------------------------------------------------------------------------------------------------
# Generating


def capitals(text):
    """Capitalises sentences, but not what follows a quote that ends in ! or ?: it may name the speaker."""
    return re.sub(r'(^|[.!?] |\." |\n)("?)([a-z])', lambda m: m[1] + m[2] + m[3].upper(), text)


class Story:
    """The facts of one story, and which of them its sentences have used."""

    def __init__(self, rng):
        self.rng = rng
        self.used = {"he", "He", "him", "his", "His"}
        self.slots = self.facts()
        self.theme = THEMES[rng.choice(list(THEMES))]
        self.slots.update(self.theme_slots())

    def facts(self):
        """The slots that do not depend on the theme. `guest` has the value of `kin`, and `helper` that of `person`;
        they are used only by sentences that state the fact of a question."""
        choice = self.rng.choice
        girl = choice((True, False))
        hero = choice(split(GIRLS if girl else BOYS))
        friend = choice([name for name in split(f"{GIRLS}|{BOYS}") if name != hero])
        pet, kin = choice(list(PETS)), choice(split(KIN))
        she = dict(he="she", He="She", him="her", his="her", His="Her")
        he = dict(he="he", He="He", him="him", his="his", His="His")
        return dict(she if girl else he, hero=hero, friend=friend, pet=pet, petcry=PETS[pet][0],
                    petjoy=PETS[pet][1], call=choice(split(CALLS)), hue=choice(split(HUES)),
                    thing=choice(split(THINGS)), trait=choice(split(TRAITS)), village=choice(split(VILLAGES)),
                    food=choice(split(FOODS)), kin=kin, guest=kin)

    def theme_slots(self):
        theme, choice, sample = self.theme, self.rng.choice, self.rng.sample
        [[person]] = theme["person"]
        slots = dict(when=choice(theme["when"][0]), to=choice(theme["to"][0]), person=person, helper=person)
        for keys, values in (
                (("spot", "spot2", "spot3"),                      sample(theme["spot"][0], 3)),
                (("work", "work2"),                               sample(theme["work"][0], 2)),
                (("problem", "try", "again", "advice", "fix"),    choice(theme["trouble"])),
                (("skill", "fail"),                               choice(theme["skill"])),
                (("gift", "step", "step2"),                       choice(theme["gift"])),
                (("sound", "creature", "state", "cure"),          choice(theme["noise"])),
                (("event", "task", "moment"),                     choice(theme["fair"]))):
            slots.update(zip(keys, values))
        return slots

    def fill(self, template):
        """Expands each [a|b] and {slot}, also inside slot values."""
        def slot(match):
            self.used.add(match[1])
            return self.slots[match[1]]
        while "[" in template or "{" in template:
            template = re.sub(r"\[([^\[\]]*)\]", lambda m: self.rng.choice(m[1].split("|")), template)
            template = re.sub(r"\{(\w+)\}", slot, template)
        return template

    def asks(self):
        """One or two questions about facts that the story has used."""
        known = [ask for ask in ASKS if set(re.findall(r"\{(\w+)\}", ask)) <= self.used]
        asked = self.rng.sample(known, min(len(known), self.rng.choice((1, 2))))
        return [re.sub(r"<\{(\w+)\}>", r"<\1={\1}>", ask) for ask in asked]

    def text(self, plot):
        """The story's text, with the answers marked as <kind=answer>."""
        lines = []
        for beat in PLOTS[plot][0].split():
            if beat.endswith("?") and self.rng.random() < 0.5:
                continue
            beat = beat.rstrip("?")
            if beat == "/":
                lines.append("\n")
            elif beat == "ask":
                lines += [self.fill(ask) for ask in self.asks()]
            else:
                table = {"sight": self.theme["sight"][0], "moral": MORALS[plot]}.get(beat) or LINES[beat]
                lines.append(self.fill(self.rng.choice(table)))
        return capitals(" ".join(lines).replace(" \n ", "\n"))


def stories(seed, count):
    """Yields count different stories; the same seed gives the same stories."""
    rng = random.Random(seed)
    seen = set()
    while len(seen) < count:
        text = Story(rng).text(rng.choice(PLOT_CHOICES))
        if text not in seen:
            seen.add(text)
            yield text


# ----------------------------------------------------------------------------------------------------------
# The recall test

MARK = re.compile(r"<(\w+)=(\w+)>")
NAMES = f"{GIRLS}|{BOYS}"
# Possible answers by kind. For a hero, wrong_answers() keeps the gender, which pronouns reveal.
RECALLED = {"hue": HUES, "thing": THINGS, "call": CALLS, "village": VILLAGES, "food": FOODS, "guest": KIN,
            "friend": NAMES, "hero": NAMES}
WRONG = 3


def plain(text):
    return MARK.sub(r"\2", text)


def wrong_answers(kind, answer, words, rng):
    """Three values of the answer's kind that are not among the story's words."""
    table = RECALLED[kind]
    if kind == "hero":
        table = next(names for names in (GIRLS, BOYS) if answer in names.split("|"))
    return rng.sample([value for value in table.split("|") if value not in words], WRONG)


def recall(text, rng):
    """Yields the recall items of a story; the module's docstring has their format."""
    story_words = set(re.findall(r"\w+", plain(text)))
    for mark in MARK.finditer(text):
        kind, answer = mark.groups()
        if kind not in RECALLED:
            continue
        before = plain(text[:mark.start()]).rstrip(" ")
        words = [word.strip(string.punctuation) for word in before.split()]
        choices = wrong_answers(kind, answer, story_words, rng) + [answer]
        rng.shuffle(choices)
        yield {"context": before, "choices": [" " + choice for choice in choices],
               "answer": choices.index(answer), "kind": kind, "distance": words[::-1].index(answer) + 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed",    type=int, default=1,    help="random seed (default: 1)")
    parser.add_argument("--stories", type=int, default=7800, help="number of stories (default: 7800)")
    parser.add_argument("--recall",  action="store_true",    help="write a recall test (JSONL) instead")
    parser.add_argument("--out",     required=True,          help="output file")
    args = parser.parse_args()
    rng = random.Random(f"recall {args.seed}")  # separate from the stories' generator, so the stories stay the same
    with open(args.out, "w", encoding="utf-8") as out:
        for text in stories(args.seed, args.stories):
            if args.recall:
                out.writelines(json.dumps(item) + "\n" for item in recall(text, rng))
            else:
                out.write(f"{plain(text)}\n{EOT}\n")


if __name__ == "__main__":
    main()

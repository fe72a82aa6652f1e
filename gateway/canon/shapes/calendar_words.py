"""Names of months, weekdays, units of time and relative days; replaces them in a text by marks.

Marking keeps all offsets: each letter of a month's name becomes ``MONTH``, and so on, so that one pattern fits all
languages.
"""

import re
import unicodedata

MONTH, WEEKDAY, SHORT_DAY, HALF, UNIT, RELATIVE = "\ue001", "\ue002", "\ue003", "\ue004", "\ue005", "\ue006"
_MARKS = "\ue001-\ue006"

_MONTHS = """
january february march april may june july august september october november december
jan feb mar apr jun jul aug sep sept oct nov dec
januar jänner februar märz mai juni juli oktober dezember mär okt dez
janvier février fevrier mars avril juin juillet août aout septembre octobre novembre décembre decembre
janv févr fevr avr juil déc
enero febrero marzo abril mayo junio julio agosto septiembre setiembre octubre noviembre diciembre ene abr dic
gennaio febbraio aprile maggio giugno luglio settembre ottobre dicembre gen mag giu lug sett ott
janeiro fevereiro março maio junho julho setembro outubro novembro dezembro fev set out
januari februari maart mei augustus mrt
stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia
styczeń luty marzec kwiecień maj czerwiec lipiec sierpień wrzesień październik listopad grudzień
января февраля марта апреля мая июня июля августа сентября октября ноября декабря
январь февраль март апрель май июнь июль август сентябрь октябрь ноябрь декабрь
янв фев мар апр июн июл авг сен сент окт ноя нояб дек
січня лютого березня квітня травня червня липня серпня вересня жовтня листопада грудня
ocak şubat mart nisan mayıs haziran temmuz ağustos eylül ekim kasım aralık
januar februar marts juni juli augusti desember
ledna února března dubna května června července srpna září října listopadu prosince
tammikuuta helmikuuta maaliskuuta huhtikuuta toukokuuta kesäkuuta heinäkuuta elokuuta syyskuuta lokakuuta marraskuuta
joulukuuta
január február március április május június július augusztus szeptember október november december
ianuarie februarie martie aprilie iunie iulie septembrie octombrie noiembrie decembrie
ιανουαρίου φεβρουαρίου μαρτίου απριλίου μαΐου ιουνίου ιουλίου αυγούστου σεπτεμβρίου οκτωβρίου νοεμβρίου δεκεμβρίου
januari februari maret mei agustus desember
يناير فبراير مارس أبريل ابريل مايو يونيو يوليو أغسطس سبتمبر أكتوبر اكتوبر نوفمبر ديسمبر
ינואר פברואר מרץ אפריל מאי יוני יולי אוגוסט ספטמבר אוקטובר נובמבר דצמבר בנובמבר בדצמבר בינואר
जनवरी फ़रवरी फरवरी मार्च अप्रैल मई जून जुलाई अगस्त सितंबर सितम्बर अक्टूबर अक्तूबर नवंबर नवम्बर दिसंबर दिसम्बर
"""

_WEEKDAYS = """
monday tuesday wednesday thursday friday saturday sunday mon tue tues wed thu thur thurs fri sat sun
montag dienstag mittwoch donnerstag freitag samstag sonnabend sonntag
lundi mardi mercredi jeudi vendredi samedi dimanche
lunes martes miércoles jueves viernes sábado domingo
lunedì martedì mercoledì giovedì venerdì sabato domenica
segunda terça quarta quinta sexta sábado segunda-feira terça-feira quarta-feira quinta-feira sexta-feira
maandag dinsdag woensdag donderdag vrijdag zaterdag zondag
poniedziałek wtorek środa czwartek piątek sobota niedziela
понедельник вторник среда четверг пятница суббота воскресенье
понеділок вівторок середа четвер субота неділя
pazartesi salı çarşamba perşembe cuma cumartesi pazar
måndag tisdag onsdag torsdag fredag lördag söndag mandag tirsdag lørdag søndag
pondělí úterý středa čtvrtek pátek neděle
maanantai tiistai keskiviikko torstai perjantai lauantai sunnuntai
hétfő kedd szerda csütörtök péntek szombat vasárnap
luni marți miercuri joi vineri sâmbătă duminică
δευτέρα τρίτη τετάρτη πέμπτη παρασκευή σάββατο κυριακή
senin selasa rabu kamis jumat sabtu minggu
الاثنين الإثنين الثلاثاء الأربعاء الخميس الجمعة السبت الأحد
सोमवार मंगलवार बुधवार गुरुवार शुक्रवार शनिवार रविवार
"""

_SHORT_DAYS = """
mo di mi do fr sa so lu ma me je ve di lun mar mer jeu ven sam dim
mié jue vie sáb dom gio sab пн вт ср чт пт сб вс
"""

_UNITS = """
millisecond milliseconds msec ms second seconds sec secs minute minutes min mins hour hours hr hrs day days week weeks
month months year years
sekunde sekunden minuten stunde stunden tag tage tagen woche wochen monat monate monaten jahr jahre jahren
seconde secondes heure heures jour jours semaine semaines mois an ans
segundo segundos minuto minutos hora horas día días dia dias semana semanas mes meses año años mês ano anos
secondo secondi minuti ora ore giorno giorni settimana settimane mese mesi anno anni
seconden uur uren dag dagen weken maand maanden jaar
sekund sekundy minut minuty godzin godziny godzinę dni dzień tygodni tygodnie miesięcy lat
секунд секунды секунду минут минуты минуту час часа часов день дня дней неделю недели недель месяц месяца месяцев лет
saniye dakika saat gün hafta ay yıl
ثانية ثوان ثواني دقيقة دقائق ساعة ساعات يوم أيام
सेकंड मिनट घंटे घंटा दिन
"""

_RELATIVE_WORDS = """
today yesterday tomorrow tonight morning afternoon evening night noon midnight
heute gestern morgen vorgestern übermorgen vormittag nachmittag abend nacht mittag
aujourd'hui hier demain matin soir après-midi
hoy ayer mañana tarde noche oggi ieri domani mattina pomeriggio sera hoje ontem amanhã manhã noite
vandaag gisteren morgen ochtend middag avond
dziś dzisiaj wczoraj jutro rano wieczorem сегодня вчера завтра утро утром день вечер вечером ночь
bugün dün yarın sabah akşam اليوم أمس غدا आज कल 今天 昨天 明天 今日 昨日 明日 오늘 어제 내일
"""

_SCRIPTLESS = re.compile(  # scripts without spaces between words
    r"(?P<weekday>(?:星期|週|周|礼拜|禮拜)[一二三四五六日天]|[月火水木金土日]曜日?|[월화수목금토일]요일)"
    r"|(?P<half>上午|下午|午前|午後|凌晨|清晨|早上|中午|晚上|夜里|오전|오후|새벽|صباحًا|صباحا|مساءً|مساء)"
)
_WORD = re.compile(
    r"(?:[^\W\d_]|[\u0300-\u036f\u064b-\u065f\u0900-\u0903\u093a-\u0957])"
    r"(?:[^\W\d_]|[\u0300-\u036f\u064b-\u065f\u0900-\u0903\u093a-\u0957'’](?=[^\W\d_]|\b)|[\u0900-\u0903\u093a-\u0957])*"
)
_FOREIGN_DIGIT = re.compile(r"[^\D0-9]")
_RESERVED = re.compile(f"[{_MARKS}]")

# For words in several lists the last list wins: month over unit, weekday over its short form.
_CLASSES: dict[str, str] = {}
for _mark, _words in (
    (SHORT_DAY, _SHORT_DAYS),
    (RELATIVE, _RELATIVE_WORDS),
    (UNIT, _UNITS),
    (WEEKDAY, _WEEKDAYS),
    (MONTH, _MONTHS),
):
    for _word in _words.split():
        _CLASSES[unicodedata.normalize("NFC", _word).casefold()] = _mark


def marked(text: str) -> str:
    """The text, of the same length, with calendar words marked and decimal digits of all scripts as ASCII."""
    text = _RESERVED.sub("\ue000", text)
    if not text.isascii():
        text = _FOREIGN_DIGIT.sub(lambda match: str(unicodedata.decimal(match[0])), text)
        text = _SCRIPTLESS.sub(lambda match: (WEEKDAY if match["weekday"] else HALF) * len(match[0]), text)
        text = text.replace("：", ":")
    return _WORD.sub(_mark_word, text)


def _mark_word(match: re.Match[str]) -> str:
    word = match[0]
    mark = _CLASSES.get(word.casefold().replace("’", "'"))
    return word if mark is None else mark * len(word)
